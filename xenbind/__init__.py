"""cffi bindings to libxl, xenstore and vchan.  Nothing else of xenpod is imported here."""
