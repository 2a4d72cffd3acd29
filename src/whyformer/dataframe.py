"""Results as a pandas table; pandas is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whyformer.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd


def dataframe(data: Any, columns: list[str] | None = None) -> pd.DataFrame:
    """From rows (one dict each, or tuples with ``columns``) or from columns by name."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("pandas", "tabular", "to_frame()") from None
    return pd.DataFrame(data, columns=columns)
