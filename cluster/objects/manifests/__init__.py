"""Changes manifests in place; everything else in the manifests stays as written."""
