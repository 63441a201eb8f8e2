"""GGUF files: a checked reader of header, metadata and tensor directory. No tensor data is read here."""
