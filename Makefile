# Everything starts from here; `make demo` and `make test` set up what they need on a fresh machine.
