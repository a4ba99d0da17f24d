"""Which environment variable holds the key of a model: known before LiteLLM, whose import takes seconds.

Only providers that ask for one plain key are listed. Of all others (clouds with logins of their own, servers
at home) nothing is said here: their own answer decides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from session.errors import ModelAway

# By the provider as LiteLLM writes it. Any of the variables is enough, and people are told the first.
VARIABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "openai": ("OPENAI_API_KEY",),
        "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "mistral": ("MISTRAL_API_KEY", "MISTRAL_AZURE_API_KEY"),
        "groq": ("GROQ_API_KEY",),
        "openrouter": ("OPENROUTER_API_KEY", "OR_API_KEY", "OPENROUTER_KEY"),
        "deepseek": ("DEEPSEEK_API_KEY",),
        "xai": ("XAI_API_KEY",),
        "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
        "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
        "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_AI_TOKEN"),
        "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
        "fireworks_ai": (
            "FIREWORKS_AI_API_KEY",
            "FIREWORKS_API_KEY",
            "FIREWORKSAI_API_KEY",
            "FIREWORKS_AI_TOKEN",
        ),
        "cerebras": ("CEREBRAS_API_KEY",),
        "deepinfra": ("DEEPINFRA_API_KEY",),
        "nvidia_nim": ("NVIDIA_NIM_API_KEY",),
    }
)
# Every provider that LiteLLM can be asked for by ``PROVIDER/MODEL``.
_NAMES = """\
a2a a2a_agent ai21 ai21_chat aiml aiohttp_openai amazon_nova anthropic anthropic_text apertis
assemblyai auto_router aws_polly aws_textract azure azure_ai azure_speech azure_text baseten bedrock
bedrock_mantle black_forest_labs bytez cerebras charity_engine chatgpt chutes clarifai cloudflare
codestral cognition cohere cohere_chat cometapi compactifai cortecs cursor custom custom_openai
darkbloom dashscope databricks datarobot deepgram deepinfra deepseek docker_model_runner dotprompt
edenai elevenlabs empower fal_ai featherless_ai fireworks_ai friendliai galadriel gdc gemini
gigachat github github_copilot gradient_ai groq helicone heroku hosted_vllm huggingface humanloop
hyperbolic inception infinity jina_ai lambda_ai langflow langfuse langgraph lemonade libertai
litellm_agent litellm_proxy llamafile lm_studio manus maritalk meta meta_llama milvus minimax
mistral modelscope mongodb moonshot morph nadir nano-gpt nebius neosantara nlp_cloud novita nscale
nvidia_nim nvidia_riva oci ollama ollama_chat oobabooga openai openai_like openrouter ovhcloud
parasail perplexity petals pg_vector pinstripes poe predibase prism publicai qwen_ai_platform
qwencloud ragflow recraft reducto reka replicate runwayml s3_vectors sagemaker sagemaker_chat
sagemaker_nova sail sambanova sap scaleway scx-ai snowflake soniox stability strands_decider
synthetic tencent tensormesh text-completion-codestral text-completion-inception
text-completion-openai together_ai topaz transcribe triton typesafe v0 valkey vercel_ai_gateway
vertex_ai vertex_ai_beta vllm volcengine voyage wandb watsonx watsonx_text xai xiaomi_mimo
xinference zai
"""
PROVIDERS = frozenset(_NAMES.split())
# LiteLLM gives models whose names begin so to these providers.
_FAMILIES = (
    ("gpt-", "openai"),
    ("chatgpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("ft:gpt-", "openai"),
    ("text-embedding-3-", "openai"),
    ("text-embedding-ada-", "openai"),
    ("claude-", "anthropic"),
)
# Of a key that the configuration holds and the provider refuses.
CONFIGURED_KEY_CURE = "correct model.api_key, or the file that model.api_key_file names"


def variables(model: str) -> tuple[str, ...]:
    """Return the variables of which any one may hold the key of ``model``; empty where that is not known."""
    provider, slash, _ = model.partition("/")
    return VARIABLES.get(provider if slash else owner_of(model), ())


def owner_of(model: str) -> str:
    """Return the provider of a name without a slash; empty where that is not known."""
    return next((owner for start, owner in _FAMILIES if model.startswith(start)), "")


def lacks_key(model: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether ``model`` needs a key from the environment for certain, and there is none."""
    names = variables(model)
    return bool(names) and not any(environment.get(name, "").strip() for name in names)


def cure(model: str) -> str:
    """Say where a valid key of ``model`` belongs."""
    names = variables(model)
    return f"set {names[0]}, or model.api_key_file" if names else "set model.api_key_file to the key's file"


def no_key(model: str) -> ModelAway:
    """Make the error of a request for ``model`` that would go out without a key."""
    error = ModelAway(f"{model}: no API key", cause="credentials", hint=cure(model))
    error.brief = str(error)
    return error
