"""Compute gradients of the explained score at the input, or at the vectors that enter the first block.

``input_space.py`` the interface, and a single input tensor · ``multi_stream.py`` several streams, each at its own entry
(``inputs/stream_inputs.py``) · ``feature_maps.py`` features of a layer, and the grid that patches leave in pixel maps.
"""

from whyformer.engines.gradient.input_space import InputSpace as InputSpace
from whyformer.engines.gradient.input_space import SingleInput as SingleInput
from whyformer.engines.gradient.multi_stream import MultiStream as MultiStream
from whyformer.engines.gradient.multi_stream import gradient_space as gradient_space
