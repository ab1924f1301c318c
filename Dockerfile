# The release of CUDA that the pinned libtorch was built with; devel, because nvcc and compute-sanitizer are needed.
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu24.04
FROM ${CUDA_IMAGE}

ENV XDG_CACHE_HOME=/opt/cache
WORKDIR /opt/rmsnorm

# Before the sources, so that a change of code does not fetch libtorch again.
COPY scripts/ scripts/
RUN scripts/setup.sh && rm -rf /var/lib/apt/lists/*

COPY . .
# The build context carries no git history: docker build --build-arg RMSNORM_COMMIT=$(git rev-parse HEAD)
ARG RMSNORM_COMMIT=
ENV RMSNORM_COMMIT=${RMSNORM_COMMIT}
# scripts/build.sh runs the set-up again, which finds everything there unless the line above went stale.
RUN scripts/build.sh && rm -rf "$XDG_CACHE_HOME/ccache"

# Any user id may write here: compose.yaml runs with the caller's, so that results belong to the caller.
RUN useradd --create-home --uid 10001 rmsnorm \
    && mkdir -p outputs artifacts figures \
    && chmod 1777 outputs artifacts figures
USER rmsnorm

ENTRYPOINT ["/opt/rmsnorm/build/cuda/bin/rmsnorm"]
CMD ["--help"]
