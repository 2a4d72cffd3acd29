"""The exceptions that whyformer raises. Each message names the problem and what to do.

WhyformerError
├── BadInput                 an argument cannot be used (also a ValueError)
│   ├── NotAllowed           a parameter has a value that is not allowed: its name, the value, the allowed values
│   ├── UnknownName          a method, option, label or tensor name that does not exist (with close matches)
│   │   └── UnknownValue     … a string that is not a value of a parameter (also NotAllowed)
│   ├── TooLong              more units than the model takes
│   └── MissingProcessor     raw inputs without a tokenizer or image processor
├── NotOffered               this method does not support this model or input, and why
│   └── MixedInputs          the output for an input changes with the other inputs of a batch
├── MissingExtra             an optional library is not installed (also an ImportError)
├── NonFinite                the model's output holds NaN or infinity
├── JobStopped               a long job had to stop (a full disk); finished work is saved (also an OSError)
├── ModelFailed              the model's own code raised; its error is the cause (also a RuntimeError)
└── CaptureError             the attention of the model could not be captured completely
    ├── NothingCaptured      no attention was found
    ├── PartlyCaptured       some attention, or some exchange between positions, was not captured
    ├── AmbiguousLayout      a batch cannot be explained as one: its inputs have to be given one by one
    └── NotOverUnits         attention runs over channels, windows or compressed keys, not over the units

>>> try:
...     wf.explain("language-model", "")
... except wf.errors.BadInput as error:
...     print(error)
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class WhyformerError(Exception):
    """Root of all whyformer errors."""

    def __str__(self) -> str:
        # A message may quote text that has no encoding, and is printed all the same.
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class BadInput(WhyformerError, ValueError):
    """An argument cannot be used."""


class UnknownName(BadInput):
    """A name that does not exist."""

    def __init__(
        self,
        kind: str,
        name: object,
        known: Iterable[object],
        hint: str = "",
        elsewhere: Mapping[str, Nearest] | None = None,
    ) -> None:
        """``elsewhere``: names that other libraries use, as ``spelling`` writes them, and the nearest name here."""
        choices = [str(k) for k in known]
        meant = _meant(name, choices, elsewhere or {}) if isinstance(name, str) else ""
        listing = ", ".join(choices[:40]) + (", …" if len(choices) > 40 else "")
        super().__init__(f"unknown {kind} {shown(name)}. {meant}Known: {listing}.{' ' + hint if hint else ''}")


def _meant(name: str, choices: Sequence[str], elsewhere: Mapping[str, Nearest]) -> str:
    """Name the choices that were probably meant: the same letters, the same thing in another library, or close."""
    written = spelling(name)
    same = [choice for choice in choices if written and spelling(choice) == written]
    if not same and written in elsewhere:
        nearest, words = elsewhere[written]
        return f"Nearest here: {nearest!r} ({words}). "
    close = same or difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(repr(choice) for choice in close)}? " if close else ""


class NotAllowed(BadInput):
    """A parameter has a value that is not allowed."""

    def __init__(self, name: str, value: object, allowed: str, choices: Sequence[str] = (), owner: str = "") -> None:
        close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5) if isinstance(value, str) else []
        meant = f" Did you mean {close[0]!r}?" if close else ""
        of = f" of {owner}" if owner else ""
        BadInput.__init__(self, f"{name}={shown(value)}{of} is not allowed: give {allowed}.{meant}")


class UnknownValue(NotAllowed, UnknownName):
    """A string that is not a value of the parameter."""


class TooLong(BadInput):
    """More units than the model takes."""


class MissingProcessor(BadInput):
    """Raw inputs without a tokenizer or image processor."""


class NotOffered(WhyformerError):
    """This method does not support this model or input."""


class MixedInputs(NotOffered):
    """The output for an input changes with the other inputs of a batch."""


class MissingExtra(WhyformerError, ImportError):
    """An optional library is not installed; the message has the command that installs it."""

    def __init__(self, why: str, libraries: str, command: str) -> None:
        super().__init__(f"{why} needs {libraries}: {command}")


class NonFinite(WhyformerError):
    """The model's output holds NaN or infinity."""


class JobStopped(WhyformerError, OSError):
    """A long job had to stop; finished work is saved."""


class ModelFailed(WhyformerError, RuntimeError):
    """The model's own code raised."""


class CaptureError(WhyformerError):
    """The attention of the model could not be captured completely."""


class NothingCaptured(CaptureError):
    """No attention was found."""


class PartlyCaptured(CaptureError):
    """Some attention, or some exchange between positions, was not captured."""


class AmbiguousLayout(CaptureError):
    """A batch cannot be explained as one, because batch and heads look alike, or gradients hold for single inputs."""


def refused(error: WhyformerError, inputs: int) -> WhyformerError:
    """Return the error; of several inputs, one that has each of them explained by itself, since it may hold for one."""
    return AmbiguousLayout(str(error)) if inputs > 1 else error


class NotOverUnits(CaptureError):
    """Attention does not run over the units of the input."""


class Misplaced(NotOverUnits):
    """Units are not at their positions: the model reorders or mixes the input before its attention."""


@contextmanager
def reading(failure: str, advice: str) -> Iterator[None]:
    """Turn exceptions of other libraries (processors, image readers, cells of a table) into a BadInput.

    Use it for such calls only: errors of our own code must not look like mistakes of the user.
    """
    try:
        yield
    except WhyformerError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's: whoever runs the batch makes it smaller
            raise
        try:
            message = " ".join(str(error).split())[:200].rstrip(".")
        except Exception:  # of an error of the user's own
            message = ""
        told = f"{type(error).__name__}{': ' if message else ''}{message}"
        raise BadInput(f"{failure} ({told}). {advice}") from error


def not_allowed(name: str, value: object, allowed: str, choices: Sequence[str] = (), owner: str = "") -> NotAllowed:
    """Return the error for a parameter; also an UnknownName if the value is a string and strings are allowed."""
    kind = UnknownValue if choices and isinstance(value, str) else NotAllowed
    return kind(name, value, allowed, choices, owner)


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Check an option against allowed values that an annotation cannot express."""
    if not any(value is c or (isinstance(value, str) and isinstance(c, str) and value == c) for c in choices):
        words = listed([repr(choice) for choice in choices], "or")
        raise not_allowed(name, value, words, [c for c in choices if isinstance(c, str)])


def shown(value: object) -> str:
    """Return a value for a message: short, on one line, with control characters escaped."""
    try:
        written = _written(value)
    except Exception:  # an object of the user's own, whose methods raise
        written = f"<{type(value).__name__}>"
    return written if len(written) <= 80 else f"{written[:77]}…"


def _written(value: object) -> str:
    if value is None or isinstance(value, (str, bytes, bool, int, float, complex)):
        return repr(value) if not isinstance(value, int) or abs(value) < 10**18 else "a number of many digits"
    if isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) <= 4 and _plain(value):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = getattr(value, "shape", None)
    of_shape = f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""
    many = f" of {len(value)}" if isinstance(value, (list, tuple, set, frozenset, dict)) else ""
    return f"<{type(value).__name__}{of_shape}{many}>"


def _plain(value: Any) -> bool:
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return all(part is None or (isinstance(part, (str, bool, int, float)) and len(str(part)) < 80) for part in parts)


def listed(words: Sequence[str], last: str) -> str:
    """Return "a, b or c"."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


# Names of methods and metrics in other libraries and papers, and the nearest method or metric here.
#
# Names are compared without case, spaces and punctuation (``spelling``), so "GradCAM" and "grad-cam" need no entry for
# ``grad_cam``. They are not accepted in place of ours: the error names ours, and results always have one name.


Nearest = tuple[str, str]  # a name here (with the options that match), and what it does or how it differs

SIGNS = str.maketrans({"*": "x", "×": "x", "+": "plus"})


def spelling(name: str) -> str:
    """Return a name in lower case without spaces and punctuation; "*" is read as "x" and "+" as "plus"."""
    return "".join(character for character in name.lower().translate(SIGNS) if character.isalnum())


def _named(names: str, ours: str, words: str) -> dict[str, Nearest]:
    return dict.fromkeys(names.split(), (ours, words))


METHODS_ELSEWHERE: dict[str, Nearest] = {
    **_named(
        "lime limetext limeimage", "shap", "Shapley values; algorithm='regression' fits masked inputs as LIME does"
    ),
    **_named("kernelshap kernelexplainer", "shap", "Shapley values; algorithm='regression' is Kernel SHAP"),
    **_named("partition partitionshap partitionexplainer owen", "shap", "Shapley values; algorithm='partition'"),
    **_named(
        "permutationshap permutationexplainer samplingexplainer shapleyvaluesampling shapleysampling",
        "shap",
        "Shapley values; algorithm='permutation'",
    ),
    **_named("shapley shapleyvalues exactexplainer shapexplainer", "shap", "Shapley values; exact for few features"),
    **_named(
        "ig integratedgradient pathintegratedgradients layerintegratedgradients",
        "integrated_gradients",
        "of tokens, at the embeddings",
    ),
    **_named(
        "deeplift deepliftshap deepexplainer gradientshap gradientexplainer expectedgradients",
        "integrated_gradients",
        "gradients between a baseline and the input, with the same sum of scores",
    ),
    **_named("lrp layerwiserelevancepropagation", "attn_lrp", "LRP with rules for attention; cp_lrp holds it constant"),
    **_named("rollout", "attention_rollout", "Abnar & Zuidema 2020"),
    **_named("flow", "attention_flow", "Abnar & Zuidema 2020"),
    **_named(
        "chefer cheferetal genericattentionexplainability transformermmexplainability",
        "generic_attention",
        "Chefer et al. 2021, ICCV; transformer_attribution is their method of CVPR 2021",
    ),
    **_named(
        "transformerexplainability transformerinterpretability transformerlrp beyondattention",
        "transformer_attribution",
        "Chefer et al. 2021, CVPR; generic_attention is their method of ICCV 2021",
    ),
    **_named("gradientxinput gradxinput inputtimesgradient gradientinput", "input_x_gradient", "gradient × input"),
    **_named(
        "saliencymap saliencymaps gradient gradients grad vanillagradient vanillagradients simplegradient "
        "guidedbackprop guidedbackpropagation deconvolution deconvnet",
        "saliency",
        "size of the gradient",
    ),
    **_named("smoothgradsquared vargrad noisetunnel", "smooth_grad", "gradients averaged over noisy copies"),
    **_named(
        "featureablation ablation leaveoneout loo erasure occlusionsensitivity slidingwindow tokenocclusion "
        "wordocclusion omission featureocclusion",
        "occlusion",
        "drop in the output when one feature is masked",
    ),
    **_named(
        "attention attentions attentionweights attentionmap attentionmaps selfattention bertviz",
        "raw_attention",
        "attention weights; 'whyformer attention' draws the maps of all heads",
    ),
    **_named("gradcamplusplus guidedgradcam layergradcam scorecam layercam eigencam cam", "grad_cam", "Grad-CAM"),
    **_named("rise", "vit_cx", "outputs of masked images; shap and occlusion mask patches, too"),
    **_named("altiplus altilogit", "alti", "ALTI, of encoders; ALTI+ extends it to decoders"),
    **_named("globenc", "value_norms", "level='enc' and aggregate='rollout', its defaults, are GlobEnc"),
    **_named(
        "attentionnorm attentionnorms vectornorms normbased", "value_norms", "level='attn' is Kobayashi et al. 2020"
    ),
    **_named("attngrad attentiongradient attentiongradients gradientattention", "attention_x_gradient", "one layer"),
    **_named("attattr attentionattribution", "value_x_gradient", "attention attribution at one point of its path"),
}
METRICS_ELSEWHERE: dict[str, Nearest] = {
    **_named("morf pixelflipping regionperturbation", "aopc", "features removed from the highest score down"),
    **_named("lerf", "negative_perturbation", "features removed from the lowest score up"),
    **_named("deletionauc selectivity irof road roar", "deletion", "area under the curve of removed features"),
    **_named("insertionauc", "insertion", "area under the curve of inserted features"),
    **_named("eraser comp", "comprehensiveness", "of ERASER, with sufficiency"),
    **_named("suff", "sufficiency", "of ERASER, with comprehensiveness"),
    **_named("faithfulness faithfulnessestimate", "faithfulness_correlation", "or the default set: omit metric="),
    **_named("fidelity fidelityplus", "f_fidelity_plus", "needs surrogate=wf.masked_surrogate(…)"),
    **_named("fidelityminus", "f_fidelity_minus", "needs surrogate=wf.masked_surrogate(…)"),
    **_named("idsds indomainsingledeletionscore", "single_deletion", "needs surrogate=wf.masked_surrogate(…)"),
    **_named("sensitivity sensitivitymax", "max_sensitivity", "largest change of the scores under noise"),
    **_named("gini giniindex sparseness complexity", "sparsity", "Gini index of the sizes of the scores"),
    **_named("efficiency additivity", "completeness", "gap between the sum of the scores and the change in output"),
    **_named("relevancemassaccuracy attributionlocalisation energybasedpointinggame", "relevance_mass", "share inside"),
    **_named("map averageprecision", "mean_average_precision", "of images; of texts: auprc"),
    **_named("iou intersectionoverunion", "iou_otsu", "of images; of texts: iou_f1"),
    **_named("plausibility", "token_f1", "agreement with what people marked; needs rationales=[…]"),
    **_named("lds lineardatamodelingscore", "linear_surrogate", "rank correlation over random halves"),
}


LIBRARIES = {  # as it is imported → as pip calls it, and the extra of whyformer that brings it ("": none does)
    "transformers": ("transformers", "hf"),
    "PIL": ("Pillow", "hf"),
    "whyformer_models": ("whyformer-models", "models"),
    "matplotlib": ("matplotlib", "plot"),
    "sklearn": ("scikit-learn", "eval"),
    "shap": ("shap", "shap"),
    "pandas": ("pandas", "tabular"),
    "rtdl_revisiting_models": ("rtdl_revisiting_models", "tabular"),
    "tab_transformer_pytorch": ("tab-transformer-pytorch", ""),
    "pyarrow": ("pyarrow", "batch"),
    "ray": ("ray", "ray"),
    "fastapi": ("fastapi", "web"),
    "uvicorn": ("uvicorn", "web"),
    "httpx": ("httpx", "web"),
    "opentelemetry": ("opentelemetry-api", "otel"),
    "anywidget": ("anywidget", "notebook"),
    "sentence_transformers": ("sentence-transformers", ""),
}
SHIPPED = ("transformers", "PIL", "rtdl_revisiting_models", "whyformer_models")  # what the shipped models take


def require(*modules: str, why: str) -> None:
    """Raise MissingExtra, with the command that installs them, if libraries are missing. Call it before any work."""
    missing = [name for name in modules if not installed(name)]
    if missing:
        raise MissingExtra(why, listed([LIBRARIES[name][0] for name in missing], "and"), command_for(*missing))


def command_for(*modules: str) -> str:
    """Return the pip command that installs libraries."""
    extras = ",".join(dict.fromkeys(LIBRARIES[name][1] for name in modules if LIBRARIES[name][1]))
    wanted = [f"'whyformer[{extras}]'"] if extras else []
    wanted += [library for library, extra in map(LIBRARIES.__getitem__, modules) if not extra]
    return f"pip install {' '.join(wanted)}"


def installed(module: str) -> bool:
    """Return whether a library can be imported."""
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def public() -> ModuleType:
    """The package as users have it, for floors below what it names: each name is imported when it is read."""
    return sys.modules[__name__.partition(".")[0]]
