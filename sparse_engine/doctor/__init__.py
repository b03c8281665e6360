"""What this installation is and whether its kernels are right."""
