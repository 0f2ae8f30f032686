"""snapbake: from a fine-tuned language model to a verified Qualcomm HTP context binary."""
