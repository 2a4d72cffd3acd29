"""Results of all verbs, and how they are saved.

``types.py`` explanations and their parts · ``result.py`` what every result can do · ``codec.py`` saving and loading ·
``interop.py`` pandas, shap, Captum and Quantus.
"""
