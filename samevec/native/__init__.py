"""The native library: the operators of the cpu profile, built from native/."""
