"""Both packages, built and installed once for all tests of a process."""

from tests.support.packages import ours as ours  # noqa: PLC0414
from tests.support.packages import wheels as wheels  # noqa: PLC0414
