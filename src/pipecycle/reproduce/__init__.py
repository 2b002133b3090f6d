"""The paper's evaluation: its grid of runs, their results, and our numbers beside the paper's."""
