#!/bin/sh
echo "TensorRT-LLM${TRT_LLM_VERSION:+ Release $TRT_LLM_VERSION} (lab: no GPU, Dynamo's mocker answers)"
exec "$@"
