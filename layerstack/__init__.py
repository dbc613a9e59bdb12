"""Immutable layers and the manifest over them: overlayfs-backed versions of one directory tree, published all or nothing."""
