"""Language models: one Protocol, LiteLLM behind it, what a call costs and how it fails."""
