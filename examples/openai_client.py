"""Ask a running server with the stock OpenAI client.

samevec serve                       # in another terminal; add --lock toy for the toy pair
pip install openai
python examples/openai_client.py
"""

from __future__ import annotations

import argparse
import math

import openai


def main() -> None:
    parser = argparse.ArgumentParser(description="Embed two texts through a samevec server.")
    parser.add_argument("--url", default="http://127.0.0.1:8765", help="where the server answers")
    # The client insists on a key; the server looks at it only when it was started with --api-key-file.
    parser.add_argument("--api-key", default="not-needed")
    arguments = parser.parse_args()

    client = openai.OpenAI(base_url=f"{arguments.url}/v1", api_key=arguments.api_key)
    models = [model.id for model in client.models.list()]
    print(f"served: {', '.join(models)}")
    answer = client.embeddings.create(
        model=models[0],
        input=["when does the ferry leave", "at seven"],
        dimensions=256,
        extra_body={"input_type": "query"},  # the model's own prompt; OpenAI has no word for it
    )
    for item in answer.data:
        norm = math.sqrt(sum(value * value for value in item.embedding))
        print(f"item {item.index}: {len(item.embedding)} numbers, norm {norm:.6f}")
    print(f"{answer.usage.total_tokens} tokens")


if __name__ == "__main__":
    main()
