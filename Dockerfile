# The toolkit and the recipes with the locked versions, torch for the CPU or, with TORCH=cu132, for CUDA 13.2.
#   docker build --tag asr-recipe-toolkit .
#   docker run --rm --volume "$PWD:/work" --volume asr-cache:/home/asr/.cache asr-recipe-toolkit transcribe --model final a.wav
ARG PYTHON=3.13
FROM python:${PYTHON}-slim
ARG PYTHON
ARG TORCH=cpu
ENV UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never

RUN pip install --no-cache-dir uv
WORKDIR /opt/asr-recipe-toolkit
# The packages first: a change of the sources does not install them again.
COPY pyproject.toml README.md LICENSE ./
COPY setup/python${PYTHON}.lock setup/
RUN uv venv .venv && \
    uv pip install --only-binary :all: --torch-backend ${TORCH} --constraint setup/python${PYTHON}.lock \
      --requirement pyproject.toml --extra recipes --extra kaldi --extra onnx
COPY toolkit/ toolkit/
COPY local/ local/
COPY recipes/ recipes/
RUN uv pip install --no-deps --editable .

RUN useradd --create-home asr && install --directory --owner asr /work /home/asr/.cache
USER asr
WORKDIR /work
ENV PATH=/opt/asr-recipe-toolkit/.venv/bin:$PATH
ENTRYPOINT ["toolkit"]
CMD ["--help"]
