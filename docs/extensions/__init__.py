"""What the site needs beside Sphinx: formulas as MathML, links into the repository, docstrings, the notebook."""
