"""Where the gradient of a score is taken: at the input's own numbers, or at the vectors that enter the first block.

``place.py`` what every place can do · ``one.py`` one tensor · ``streams.py`` several streams at once, each at its own
``entry.py`` (words) or ``given.py`` (pixels, vectors, sound) · ``choose.py`` which of them an option names.
"""

from whyformer.places.choose import place_of as place_of
from whyformer.places.one import OnePlace as OnePlace
from whyformer.places.place import Place as Place
from whyformer.places.streams import StreamPlace as StreamPlace
