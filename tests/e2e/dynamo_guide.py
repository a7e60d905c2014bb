"""The same stack by the commands of NVIDIA's guide for gpt-oss-120b, on one host without service management.

Differences from the guide: image addresses; interactive commands run in a container that sleeps; etcd and NATS, which
the guide's compose file publishes on all addresses, use the host's network, with the same addresses; workers get a
DYN_SYSTEM_PORT, because the lab's workers do not register the path of the model and there is no hub; limits that lab
containers cannot raise are absent.
"""

from __future__ import annotations

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_load import complete

REGISTRY = "registry.origin.test"
RUN = "docker --config /etc/trtllm-fleet/docker run --detach"  # logged in
MODEL = "/srv/trtllm-fleet/models/openai/gpt-oss-120b/*"
# From NVIDIA's repository, examples/backends/trtllm/engine_configs/gpt-oss-120b.
PREFILL = """
enable_attention_dp: false
disable_overlap_scheduler: true
moe_config: {backend: CUTLASS}
enable_chunked_prefill: true
cuda_graph_config: {max_batch_size: 32, enable_padding: true}
cache_transceiver_config: {backend: UCX, max_tokens_in_buffer: 65536}
print_iter_log: false
stream_interval: 10
"""
DECODE = """
enable_attention_dp: true
disable_overlap_scheduler: false
moe_config: {backend: CUTLASS}
cuda_graph_config: {enable_padding: true}
cache_transceiver_config: {backend: UCX, max_tokens_in_buffer: 65536}
print_iter_log: false
stream_interval: 10
"""
# docker compose -f deploy/docker-compose.yml up
COMPOSE = f"""
{RUN} --name nats --network host {REGISTRY}/library/nats:2.11.4 -js --trace -m 8222
{RUN} --name etcd --network host --env ALLOW_NONE_AUTHENTICATION=yes {REGISTRY}/coreos/etcd:v3.6.1 \
  /usr/local/bin/etcd --listen-client-urls http://0.0.0.0:2379 --advertise-client-urls http://0.0.0.0:2379
"""
CONTAINER = f"""
{RUN} {{gpus}} --rm --name dynamo --network host --volume $(echo {MODEL}):/model --volume /root/dynamo:/workspace \
  --workdir /workspace --shm-size=10G --cap-add CAP_SYS_PTRACE --ipc host \
  --env TRTLLM_ENABLE_PDL=1 --env TRT_LLM_DISABLE_LOAD_WEIGHTS_IN_PARALLEL=True \
  {REGISTRY}/nvidia/ai-dynamo/tensorrtllm-runtime:1.4.2 sleep infinity
"""
WORKER = """
docker exec --detach --env CUDA_VISIBLE_DEVICES={gpus} --env DYN_SYSTEM_PORT={port} dynamo \
  python3 -m dynamo.trtllm --model-path /model --served-model-name openai/gpt-oss-120b --extra-engine-args {kind}.yaml \
  --dyn-reasoning-parser gpt_oss --dyn-tool-call-parser harmony --disaggregation-mode {kind} {options} \
  --free-gpu-memory-fraction 0.9 --tensor-parallel-size 4 --expert-parallel-size 4
"""


class Guide:
    """The stack on an otherwise idle host with Docker, the model and eight GPUs."""

    def __init__(self, host: Fleet, api: str) -> None:
        self.host = host
        self.api = api

    def start(self) -> None:
        """Start all components as in the guide and wait until requests succeed."""
        self.stop()
        self.host.shell(
            "mkdir -p /root/dynamo && cd /root/dynamo"
            f" && echo '{PREFILL}' > prefill.yaml && echo '{DECODE}' > decode.yaml"
        )
        cdi = (
            self.host.shell("docker info --format '{{json .}}' | grep --count CDISpecDirs", check=False).strip() == "1"
        )
        gpus = (
            "--device nvidia.com/gpu=all" if cdi else "--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"
        )
        self.host.shell(COMPOSE + CONTAINER.format(gpus=gpus))
        self.host.shell(
            "docker exec --detach dynamo python3 -m dynamo.frontend --router-mode round-robin --http-port 8000"
        )
        self.host.shell(
            WORKER.format(
                gpus="0,1,2,3", port=9091, kind="prefill", options="--max-num-tokens 20000 --max-batch-size 32"
            )
        )
        self.host.shell(WORKER.format(gpus="4,5,6,7", port=9092, kind="decode", options="--max-num-tokens 16384"))
        assert wait_for(lambda: complete(self.api, timeout=10), 120)

    def stop(self) -> None:
        self.host.shell("docker rm --force --volumes nats etcd dynamo 2>/dev/null", check=False)
