"""Turn raw inputs into tensors and name their units: one kind of input per file, and what these files share.

``base.py`` the interface of a modality · ``modalities.py`` choose the modality of an input · ``checkpoint.py`` load a
model by its folder or name, call its processor · ``batch.py`` batches, and the arguments of a model · ``units.py``
units, words, sentences, chats · ``output.py`` logits and the explained scalar · ``families.py`` names by which model
families are recognised.

Text: ``tokens.py``, ``text.py``; heads over it: ``token_heads.py``, ``answers.py``. Language models: ``language.py``;
models behind an API: ``prompt.py``, ``completions.py``. Two texts, or a source and a target: ``multi_input.py``.
Images: ``image.py``, ``detection.py``, ``image_text.py``. Sound: ``audio.py``. Tables:
``table_schema.py``, ``table.py``, ``table_model.py``. Tensors, and which arguments are sequences: ``tensors.py``,
``stream_inputs.py``.
"""
