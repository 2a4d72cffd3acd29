"""What methods are made of, in the three words of a method's ``specificity``.

``attention/`` from one map per layer to one for the model · ``gradient/`` where gradients are taken · ``perturbation/``
inputs with parts away.
"""
