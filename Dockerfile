# Two images from one file: `--target operator` (no torch) and `--target trainer` (no kopf).
# BASE is any Debian with Python 3.11 or newer, its venv module and ca-certificates.
ARG BASE=python:3.13-slim-bookworm
ARG UV_VERSION=0.13.8

FROM ${BASE} AS python
LABEL org.opencontainers.image.vendor="batchgrowth.dev" \
      org.opencontainers.image.licenses="Apache-2.0"
# The root file system may be read-only; processes write to /tmp and to mounted volumes.
ENV PATH=/opt/batchgrowth/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN groupadd --gid 65532 batchgrowth \
 && useradd --uid 65532 --gid 65532 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin batchgrowth \
 && python3 -m venv --without-pip /opt/batchgrowth
WORKDIR /tmp

# The project alone, in a virtual environment that is copied over that of the dependencies, at the same path.
FROM python AS project
ARG UV_VERSION
COPY pyproject.toml README.md LICENSE /source/
COPY plan /source/plan
COPY operator /source/operator
COPY trainer /source/trainer
RUN python3 -m venv /uv && /uv/bin/pip install --quiet --no-cache-dir uv==${UV_VERSION} \
 && /uv/bin/uv pip install --no-cache --system-certs --quiet --compile-bytecode --python /opt/batchgrowth \
      --no-deps /source

# Each image installs the packages of its extra, in the versions that the lock pins.
FROM python AS operator
ARG UV_VERSION
COPY pyproject.toml requirements.lock /opt/batchgrowth/lock/
RUN python3 -m venv /uv && /uv/bin/pip install --quiet --no-cache-dir uv==${UV_VERSION} \
 && /uv/bin/uv pip install --no-cache --system-certs --quiet --compile-bytecode --python /opt/batchgrowth \
      --requirements /opt/batchgrowth/lock/pyproject.toml --extra operator \
      --constraints /opt/batchgrowth/lock/requirements.lock \
 && rm -rf /uv
COPY --from=project /opt/batchgrowth /opt/batchgrowth
LABEL org.opencontainers.image.title="batchgrowth operator" \
      org.opencontainers.image.description="Makes the cluster match the plan of each BatchGrowthJob"
USER 65532:65532
ENTRYPOINT ["batchgrowth"]
CMD ["operator"]

FROM python AS trainer
ARG UV_VERSION
COPY pyproject.toml requirements.lock /opt/batchgrowth/lock/
RUN python3 -m venv /uv && /uv/bin/pip install --quiet --no-cache-dir uv==${UV_VERSION} \
 && /uv/bin/uv pip install --no-cache --system-certs --quiet --compile-bytecode --python /opt/batchgrowth \
      --requirements /opt/batchgrowth/lock/pyproject.toml --extra trainer \
      --constraints /opt/batchgrowth/lock/requirements.lock \
 && rm -rf /uv
COPY --from=project /opt/batchgrowth /opt/batchgrowth
LABEL org.opencontainers.image.title="batchgrowth trainer" \
      org.opencontainers.image.description="Scheduler, workers and trainer of a BatchGrowthJob"
USER 65532:65532
ENTRYPOINT ["batchgrowth"]
CMD ["--help"]
