"""Programs on the native kernels: lists of native steps over one workspace."""
