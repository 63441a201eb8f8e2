"""Architectures that ship with Strata: one module, one `ARCH` value, one entry point each."""
