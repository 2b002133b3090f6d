"""The contenders of `cpu_rivals.py`: the same sessions, each written as its library recommends."""
