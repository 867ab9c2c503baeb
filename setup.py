"Packaging: every value lives in settings.ini, this only hands it to setuptools."
import shlex
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

cfg = ConfigParser(delimiters=['='])
cfg.read('settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']


class Modules(build_py):
    "All modules but nbdev's index of them, which is half a megabyte that only the documentation reads."
    def find_package_modules(self, package, package_dir):
        return [m for m in super().find_package_modules(package, package_dir) if m[1] != '_modidx']


setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'],
    keywords=cfg['keywords'], author=cfg['author'], author_email=cfg['author_email'],
    license='Apache-2.0', url=cfg['git_url'], python_requires='>=' + cfg['min_python'],
    long_description=Path('README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    packages=find_packages(include=[cfg['lib_path'], cfg['lib_path'] + '.*']),
    package_data={cfg['lib_path'] + '.papers': ['claims.csv'], cfg['lib_path'] + '.lab': ['laboratory.ipynb']},
    install_requires=shlex.split(cfg['requirements']),
    extras_require={k: shlex.split(cfg[f'{k}_requirements']) for k in ('dev', 'lab', 'cluster', 'search')},
    entry_points={'console_scripts': shlex.split(cfg['console_scripts'])},
    cmdclass={'build_py': Modules}, include_package_data=True, zip_safe=False)
