"""Words that several commands' help texts share."""

DOMAIN = "What the sequences are: code, dna, ehr, logs, protein, text, or a plugin's."

PATHS = "Files, folders, or data sets of Hugging Face (hf:NAME or hf:NAME:SPLIT); - is standard input."

PRECISION = (
    "Of matrix products: fp32 (exact to rounding), bf16 (faster on a GPU and on processors that multiply "
    "bfloat16; log-probabilities change by some hundredths), or auto (bf16 on a GPU that has it, else fp32)."
)
