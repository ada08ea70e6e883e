"""Flags of llama-server that have no meaning here; a command line that has them works all the same.

Knows their names, and which take a value; of those that only print, what prints it here.
"""

from __future__ import annotations

from typing import Final

_WITH_VALUE: Final = """
--grp-attn-n --grp-attn-w -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio
--poll -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch -fa
--flash-attn -dt --defrag-thold --rpc -lm --load-mode -lzm --lazy-mode -dev --device -ot
--override-tensor -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -sm --split-mode -ts --tensor-split -mg
--main-gpu -fit --fit -fitt --fit-target -fitc --fit-ctx -hft
--hf-token --log-file --log-colors -lv --verbosity --log-verbosity --spec-draft-type-k -ctkd
--cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft -lcs --lookup-cache-static -lcd
--lookup-cache-dynamic -ctxcp --ctx-checkpoints --swa-checkpoints -cms
--checkpoint-min-step -cram --cache-ram -mm --mmproj -mmu --mmproj-url -mmdev --mmproj-device
--image-min-tokens --image-max-tokens --mtmd-batch-max-tokens --video-fps --video-timestamp-interval
--video-ffmpeg-dir --path --cors-methods --cors-headers --ui-config --webui-config
--ui-config-file --webui-config-file --tools --tools-runtime --mcp-servers-config --mcp-servers-json
--threads-http --cache-reuse --media-path --models-preset --models-max
--reasoning-budget-message -sps --slot-prompt-similarity
--log-prompts-dir --spec-draft-threads -td
--threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft --spec-draft-cpu-mask -Cd
--cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict
--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-strict-batch
--cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch
--poll-batch-draft --spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe
--spec-draft-ncmoe -ncmoed --n-cpu-moe-draft --spec-synth-len
--spec-synth-rates --spec-draft-p-split --draft-p-split --spec-draft-p-min --draft-p-min
--spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft
--n-gpu-layers-draft --spec-ngram-mod-n-min
--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n
--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n
--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n
--spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m
--spec-ngram-min-hits
"""
_ALONE: Final = """
--backend_sampling --perf --no-perf -e --escape --no-escape -kvo --kv-offload -nkvo --no-kv-offload
--repack -nr --no-repack --no-host -cmoe --cpu-moe --check-tensors --op-offload --no-op-offload
--log-disable --log-jsonl --no-log-jsonl --log-prefix --no-log-prefix --log-timestamps
--no-log-timestamps -bs --backend-sampling --cache-idle-slots --no-cache-idle-slots -sp --special
--warmup --no-warmup --spm-infill -cb --cont-batching -nocb --no-cont-batching --mmproj-auto
--no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload --reuse-port --cors-credentials
--no-cors-credentials --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy -ag
--agent -no-ag --no-agent --models-autoload --no-models-autoload --jinja --no-jinja
--reasoning-preserve --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing
--spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-backend-sampling
--no-spec-draft-backend-sampling --mlock --mmap --no-mmap --direct-io --no-direct-io --verbose-prompt
"""
PRINTING: Final = {
    "--list-devices": "`graphml doctor` lists backends and their devices",
    "-cl": "`graphml models` lists models that are here",
    "--cache-list": "`graphml models` lists models that are here",
    "--completion-bash": "`graphml --show-completion` prints completions for a shell",
}
"""Flags that print something and serve nothing."""
WITH_VALUE: Final = frozenset(_WITH_VALUE.split())
ALONE: Final = frozenset(_ALONE.split()) | PRINTING.keys()
