#!/bin/sh
echo "TensorRT-LLM Release ${TRT_LLM_VERSION} (lab: no GPU, Dynamo's mocker answers)"
exec "$@"
