"""The masked language model: tensors only, without knowledge of fields, file formats or tracking."""
