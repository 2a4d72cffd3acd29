"""Lend a model to a computation and hand it back unchanged.

``borrow.py`` the loan · ``turns.py`` locks, Ctrl-C and random numbers between threads · ``parts.py``,
``fingerprint.py``, ``digests.py`` what the output of a model depends on, compared from call to call
and as keys on disk · ``spread.py`` weights on other devices, memory · ``quantised.py``,
``backwards.py`` layers without a plain weight.
"""
