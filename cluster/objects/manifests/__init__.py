"""Changes manifests in place; everything else in them stays as it was written."""
