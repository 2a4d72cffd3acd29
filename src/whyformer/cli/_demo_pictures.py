"""The part of the demo with pictures: drawn faces for the model of pets, and stripes for the model of textures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

FACE_METHODS = ("attention_rollout", "generic_attention", "grad_cam", "saliency")
HORSE_METHODS = ("generic_attention", "saliency", "integrated_gradients", "occlusion")
ABOUT = {
    "attention_rollout": "where all layers look, whatever the class",
    "generic_attention": "the attention that raised the score",
    "grad_cam": "features that raise the score",
    "saliency": "where a nudge would change it most",
    "integrated_gradients": "slopes added up on the way from a grey picture",
    "occlusion": "what the score loses without a patch",
}
DRAWN = (
    "This is a drawing made by the demo: photos are not shipped. The model learned from photos, so take this for "
    "what an explanation looks like, not for how well the model sees."
)
HORSE = "Its stripes make this horse a zebra. The sharpest maps point at a few of them only."
STRIPES = (
    "The model calls a horse with stripes zebra-like, any other horse horse-like. Concepts are sets of pictures; a "
    "bar is the share of striped horses that become more zebra-like with more of the first concept and less of the "
    "second; 0.5 is what chance gives."
)


def picture_views() -> list[Any]:
    """A cat, a dog, a striped horse, and whether stripes make the zebra."""
    from whyformer.demo.faces import face
    from whyformer.demo.pictures import picture

    views = []
    pets = _explained("pets", [face("cat"), face("dog")], FACE_METHODS)
    for name, (image, explanations) in zip(("A drawn cat", "A drawn dog"), pets, strict=True):
        views.append(_beside(f"{name}, and a model of cats and dogs", image, explanations, DRAWN))
    ((image, explanations),) = _explained("textures", [picture("horse", "striped", seed=2)], HORSE_METHODS)
    views.append(_beside("A striped horse, and a model of shapes and textures", image, explanations, HORSE))
    return [*views, _stripes()]


def _explained(name: str, images: list[Any], methods: tuple[str, ...]) -> list[tuple[Any, list[Any]]]:
    """Per image: its pixels, and one explanation per method."""
    from PIL import Image

    from whyformer import demo
    from whyformer.cli._model import quiet
    from whyformer.explainer import Explainer

    with quiet():
        model, processor = demo.load_pets() if name == "pets" else demo.load_textures()
    found = Explainer(model, processor).explain(
        [Image.fromarray(pixels) for pixels in images], method=list(methods), progress=False
    )
    return [(pixels, [found[method][i] for method in methods]) for i, pixels in enumerate(images)]


def _beside(title: str, image: Any, explanations: list[Any], note: str) -> Any:
    """The picture first, then one map per method, each on its own scale."""
    from whyformer.views import side_by_side
    from whyformer.views.view import Panel, Picture

    view = side_by_side(explanations, image=image, shared=False, notes=ABOUT, title=title)
    panels = (Panel((Picture(image),), "input"), *view.panels)
    return replace(view, panels=panels, columns=len(panels), caption=f"{view.caption} {note}")


def _stripes() -> Any:
    from whyformer.cli._model import quiet
    from whyformer.cli.tcav import shipped_concepts
    from whyformer.concepts.tcav import tcav
    from whyformer.views.concepts import scores_view

    with quiet():
        given = shipped_concepts(0, sets=12, size=10)
    pairs = [("striped", "dotted"), ("striped", "bubbly"), ("bubbly", "striped"), ("dotted", "bubbly")]
    found = tcav(given.pop("model"), given.pop("layer"), **given, relative=pairs, pooling="mean", progress=False)
    return replace(scores_view(found, "Do zebras need stripes? (TCAV)"), caption=STRIPES)
