"""cffi bindings to libxl, xenstore and vchan.  Imports nothing else of xenpod."""
