"""Text in, text out: vocabularies, tokenizers, chat templates, stop strings, incremental decoding.

Pure modules: no trio, no HTTP, no clock of their own, no environment. The server and the command line call them.
"""
