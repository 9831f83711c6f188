"""`seqmlm finetune` and `predict`: what a small labelled set teaches a model."""
