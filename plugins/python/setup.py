"""Makes the wheel of the assembled package: one for all versions of Python 3, because libdeft is loaded by ctypes."""

import os

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution


class Binary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(version=os.environ.get("DEFT_WHEEL_VERSION", "0"), distclass=Binary, cmdclass={"bdist_wheel": AnyPython})
