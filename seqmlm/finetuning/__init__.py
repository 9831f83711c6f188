"""`seqmlm finetune` and `seqmlm predict`: train a model on labelled records, and predict labels."""
