"""Raw inputs to tensors to units: one kind of input per file, and what they share.

``base.py`` what a modality answers · ``modalities.py`` which one fits · ``checkpoint.py`` a model by its folder or
name · ``config.py`` entries of its config · ``arguments.py`` what a model is called with · ``sequences.py`` which
arguments are sequences · ``batch.py``, ``units.py`` what comes of it · ``host.py`` numbers that a device is asked for
once · ``families.py`` names by which models are known.

Text: ``tokens.py``, ``rust_tokenizer.py``, ``processing.py``, ``columns.py``, ``text.py``, ``text_padding.py``; heads
over it: ``token_heads.py``, ``answers.py``; parts of it: ``segments.py``. Language models: ``language.py``,
``chat.py``, and those that are only asked: ``prompt.py``, ``completions.py``. Two texts: ``similarity.py``,
``seq2seq.py``. Pictures: ``image.py``, ``detection.py``, ``image_text.py``, ``image_tokens.py``. Sound: ``audio.py``,
``spectrogram.py``. Tables: ``table_schema.py``, ``table.py``, ``table_model.py``, ``fillings.py``. Others:
``tensors.py``, ``streams.py``, ``stream_inputs.py``.
"""
