"""Rankings of labelled documents, the candidate's beside PyTorch's."""
