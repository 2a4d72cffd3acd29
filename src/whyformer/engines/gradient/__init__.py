"""Where the gradient of a score is taken: at the input's own numbers, or at the vectors that enter the first block.

``input_space.py`` what every space can do, and one tensor · ``multi_stream.py`` several streams at once, each at its
own entry (``inputs/stream_inputs.py``) · ``places.py`` which of them an option names ·
``feature_maps.py`` the features of a layer · ``patch_grid.py`` the grid that patches leave in pixel maps.
"""

from whyformer.engines.gradient.input_space import InputSpace as InputSpace
from whyformer.engines.gradient.input_space import SingleInput as SingleInput
from whyformer.engines.gradient.multi_stream import MultiStream as MultiStream
from whyformer.engines.gradient.places import gradient_space as gradient_space
