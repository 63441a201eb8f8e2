"""An architecture that no other distribution has; docs/add-an-arch.md explains the pieces."""
