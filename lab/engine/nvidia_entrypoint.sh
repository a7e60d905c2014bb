#!/bin/sh
backend="no GPU, Dynamo's mocker answers"
[ -z "$LAB_ENGINE_PYTHON" ] || backend="not TensorRT-LLM, transformers answers on a GPU"
echo "TensorRT-LLM${TRT_LLM_VERSION:+ Release $TRT_LLM_VERSION} (lab: $backend)"
exec "$@"
