# Targets are split by what they need: nothing, root, or nested Xen.
PY := .venv/bin/python

.PHONY: proto
proto:  ## regenerate the stubs from the contracts
	cd proto && ../$(PY) -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
	  --plugin=protoc-gen-mypy=../.venv/bin/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=../.venv/bin/protoc-gen-mypy_grpc \
	  $$(find xenpod_proto -name '*.proto' | sed 's|^\./||' | sort)
