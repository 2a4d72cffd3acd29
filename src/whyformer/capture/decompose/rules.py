"""Which function of torch is answered by which rule, while a model is being decomposed.

What is linear acts on every share alike. What is not is made so with the values the model really has: a normalisation
divides by the true deviation, a nonlinearity multiplies by its slope from the origin f(z)/z, attention weights and
gates are constants. A function without a rule is an error only where its result is needed.
"""

from __future__ import annotations

from whyformer.capture.decompose.bends import activation, layer_norm, rms_norm, unrelated, weighs
from whyformer.capture.decompose.call import Rule
from whyformer.capture.decompose.linear import add, divide, linear_in_all, multiply, negative, same
from whyformer.capture.decompose.products import addmm, linear, linear_in_one, matrix_product, sdpa


def _names(rule: Rule, *names: str) -> dict[str, Rule]:
    return {name: rule for line in names for name in line.split()}


RULES: dict[str, Rule] = {
    **_names(
        linear_in_all,
        "view reshape flatten unflatten unsqueeze squeeze view_as reshape_as transpose swapaxes swapdims permute T mT",
        "t movedim moveaxis __getitem__ narrow select split chunk unbind tensor_split index_select gather expand",
        "expand_as repeat repeat_interleave tile roll flip sum mean cumsum cat concat concatenate stack hstack vstack",
        "masked_fill where take_along_dim diagonal tril triu",
    ),
    **_names(
        same,
        "to type type_as float half bfloat16 double cpu cuda contiguous clone detach alias requires_grad_ positive",
        "dropout dropout1d dropout2d alpha_dropout feature_dropout",
    ),
    **_names(add, "add __add__ __radd__ __iadd__ add_ sub subtract __sub__ __rsub__ rsub __isub__ sub_"),
    **_names(negative, "neg negative __neg__"),
    **_names(multiply, "mul multiply __mul__ __rmul__ __imul__ mul_"),
    **_names(divide, "div divide true_divide __truediv__ __div__ __rtruediv__ __rdiv__ __itruediv__ div_"),
    **_names(linear, "linear"),
    **_names(addmm, "addmm"),
    **_names(matrix_product, "matmul __matmul__ bmm"),
    **_names(linear_in_one, "einsum"),
    **_names(sdpa, "scaled_dot_product_attention"),
    **_names(layer_norm, "layer_norm"),
    **_names(rms_norm, "rms_norm"),
    **_names(
        activation,
        "gelu relu relu_ relu6 silu silu_ sigmoid sigmoid_ tanh tanh_ elu elu_ celu selu selu_ leaky_relu leaky_relu_",
        "prelu softplus softsign mish hardswish hardsigmoid hardtanh logsigmoid threshold erf clamp clamp_ clip",
        "pow __pow__ square sqrt rsqrt exp log abs reciprocal sin cos nan_to_num nan_to_num_ normalize",
    ),
    **_names(
        weighs,
        "softmax special_softmax log_softmax var std var_mean norm vector_norm amax amin max min topk logsumexp sign",
    ),
    **_names(
        unrelated,
        "zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_empty new_full",
    ),
}
