# Two images from one file: `--target operator` (no torch) and `--target trainer` (no kopf).
# BASE is any Debian with Python 3.11 or newer, its venv module and ca-certificates, by its digest: a tag may name another
# image tomorrow. The default grows old; `docker buildx imagetools inspect python:3.13-slim-bookworm` prints a newer one.
ARG BASE=python:3.13.14-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8

FROM ${BASE} AS python
ARG BASE
RUN echo "${BASE}" | grep -Eq '^localhost/|@sha256:[0-9a-f]{64}$' \
 || { echo "BASE=${BASE} has no digest; build with --build-arg BASE=NAME:TAG@sha256:DIGEST" >&2; exit 1; }
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
COPY pyproject.toml README.md LICENSE requirements.lock /source/
COPY plan /source/plan
COPY operator /source/operator
COPY trainer /source/trainer
RUN sed -n '/^uv==/,/[^\\]$/p' /source/requirements.lock > /tmp/uv.txt \
 && python3 -m venv /uv && /uv/bin/pip install --quiet --no-cache-dir --require-hashes --requirement /tmp/uv.txt \
 && /uv/bin/uv pip install --no-cache --system-certs --quiet --compile-bytecode --python /opt/batchgrowth \
      --build-constraints /source/requirements.lock --no-deps /source

# Each image installs the packages of its extra, in the versions and with the digests of the lock, and uv itself too.
FROM python AS operator
COPY pyproject.toml requirements.lock /opt/batchgrowth/lock/
RUN sed -n '/^uv==/,/[^\\]$/p' /opt/batchgrowth/lock/requirements.lock > /tmp/uv.txt \
 && python3 -m venv /uv && /uv/bin/pip install --quiet --no-cache-dir --require-hashes --requirement /tmp/uv.txt \
 && /uv/bin/uv pip install --no-cache --system-certs --quiet --compile-bytecode --python /opt/batchgrowth \
      --requirements /opt/batchgrowth/lock/pyproject.toml --extra operator \
      --constraints /opt/batchgrowth/lock/requirements.lock \
 && rm -rf /uv /tmp/uv.txt
COPY --from=project /opt/batchgrowth /opt/batchgrowth
LABEL org.opencontainers.image.title="batchgrowth operator" \
      org.opencontainers.image.description="Makes the cluster match the plan of each BatchGrowthJob"
USER 65532:65532
ENTRYPOINT ["batchgrowth"]
CMD ["operator"]

FROM python AS trainer
COPY pyproject.toml requirements.lock /opt/batchgrowth/lock/
RUN sed -n '/^uv==/,/[^\\]$/p' /opt/batchgrowth/lock/requirements.lock > /tmp/uv.txt \
 && python3 -m venv /uv && /uv/bin/pip install --quiet --no-cache-dir --require-hashes --requirement /tmp/uv.txt \
 && /uv/bin/uv pip install --no-cache --system-certs --quiet --compile-bytecode --python /opt/batchgrowth \
      --requirements /opt/batchgrowth/lock/pyproject.toml --extra trainer \
      --constraints /opt/batchgrowth/lock/requirements.lock \
 && rm -rf /uv /tmp/uv.txt
COPY --from=project /opt/batchgrowth /opt/batchgrowth
LABEL org.opencontainers.image.title="batchgrowth trainer" \
      org.opencontainers.image.description="Scheduler, workers and trainer of a BatchGrowthJob"
USER 65532:65532
ENTRYPOINT ["batchgrowth"]
CMD ["--help"]
