"""The providers of models that ``onboard`` offers by number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider: its LiteLLM prefix, an example of a model, and what it has to be asked with.

    Args:
        api_base: the usual address of a server of one's own, which is asked for; empty: the provider has one.
        keyed: whether it takes a key.
    """

    title: str
    prefix: str
    example: str
    api_base: str = ""
    keyed: bool = True

    def model(self, name: str) -> str:
        """Return a model as LiteLLM names it; its prefix may be there already."""
        return name if name.startswith(f"{self.prefix}/") else f"{self.prefix}/{name}"


PROVIDERS = (
    Provider("OpenAI", "openai", "gpt-4.1-mini"),
    Provider("Anthropic", "anthropic", "claude-sonnet-4-5"),
    Provider("Gemini", "gemini", "gemini-2.5-flash"),
    Provider("OpenRouter", "openrouter", "openai/gpt-4.1-mini"),
    Provider("Ollama", "ollama_chat", "llama3.2", "http://127.0.0.1:11434", keyed=False),
    Provider("vLLM", "hosted_vllm", "Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1"),
    Provider("LM Studio", "lm_studio", "qwen3-8b", "http://127.0.0.1:1234/v1", keyed=False),
    Provider("Azure", "azure", "my-deployment", "https://my-resource.openai.azure.com"),
    Provider("Groq", "groq", "llama-3.3-70b-versatile"),
    Provider("Mistral", "mistral", "mistral-small-latest"),
)
OTHER = str(len(PROVIDERS) + 1)
_WIDTH, _COLUMNS = 17, 4


def listed() -> str:
    """Return the numbered list, in columns."""
    titles = [*(provider.title for provider in PROVIDERS), "other"]
    cells = [f"{number:>2} {title}".ljust(_WIDTH) for number, title in enumerate(titles, 1)]
    rows = [cells[at : at + _COLUMNS] for at in range(0, len(cells), _COLUMNS)]
    return "\n".join("".join(row).rstrip() for row in rows)


def chosen(answer: str) -> Provider | None:
    """Return the provider that a number or a name means; None: the answer is neither."""
    said = answer.strip().lower()
    if said.isdigit() and 1 <= int(said) <= len(PROVIDERS):
        return PROVIDERS[int(said) - 1]
    return next((one for one in PROVIDERS if said in (one.title.lower(), one.prefix)), None)


def of_model(name: str) -> Provider | None:
    """Return the provider of a model as LiteLLM names it."""
    return next((one for one in PROVIDERS if name.startswith(f"{one.prefix}/")), None)
