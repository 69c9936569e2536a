"""The digest of the manifest of the shipped winners. Written by `kforge cache ship`, not by hand."""

MANIFEST_SHA256 = "444ca4297a343e8ab2af0150a3a390d2f7d60c210c8de3762fc7756e6ef8ebcc"
