"""Chat templates that a command line may name, for models whose file has none, or another.

Written for graphml, after the formats' own descriptions. Knows templates as text.
"""

from __future__ import annotations

from typing import Final

_LOOP: Final = "{% for message in messages %}"
CHATML: Final = (
    _LOOP + "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMED: Final = {
    "chatml": CHATML,
    "llama3": (
        _LOOP + "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
        "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "llama2": (
        "{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}" + _LOOP
        + "{% if message['role'] == 'user' %}[INST] {% if system and loop.index0 <= 1 %}<<SYS>>\n{{ system }}"
        "\n<</SYS>>\n\n{% endif %}{{ message['content'] }} [/INST]"
        "{% elif message['role'] == 'assistant' %} {{ message['content'] }}</s>{% endif %}{% endfor %}"
    ),
    "command-r": (
        _LOOP + "{% set role = {'system': 'SYSTEM', 'user': 'USER'}.get(message['role'], 'CHATBOT') %}"
        "<|START_OF_TURN_TOKEN|><|{{ role }}_TOKEN|>{{ message['content'] | trim }}<|END_OF_TURN_TOKEN|>"
        "{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
    ),
    "gemma": (
        _LOOP + "{% set role = 'model' if message['role'] == 'assistant' else 'user' %}"
        "<start_of_turn>{{ role }}\n{{ message['content'] | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "phi3": (
        _LOOP + "<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "zephyr": (
        _LOOP + "<|{{ message['role'] }}|>\n{{ message['content'] }}<|endoftext|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "vicuna": (
        _LOOP + "{% if message['role'] == 'system' %}{{ message['content'] }}\n\n"
        "{% elif message['role'] == 'user' %}USER: {{ message['content'] }}\n"
        "{% else %}ASSISTANT: {{ message['content'] }}</s>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
}  # fmt: skip
"""Template by the name that llama-server's `--chat-template` has for it."""
