"""Notebooks to a static site and to README.md, with no network and no Quarto.

    python dev/docs.py                    # the site, in _docs/
    python dev/docs.py --readme           # README.md and its figures, from index.ipynb
    python dev/docs.py --readme --check   # is README.md what index.ipynb gives?

nbdev's own processors honour the directives and say which symbols a page documents. Signatures come from the
exported modules, results from the outputs stored in the notebooks, so nothing is trained here. TeX becomes
MathML, names in backticks become links, and Zensical lays out the pages. Anything that would show as broken (a
link, a formula, a stored error) stops the build with the notebook and the cell."""
import argparse
import ast
import base64
import contextlib
import gc
import html
import importlib
import inspect
import itertools
import json
import os
import posixpath
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import typing
import unicodedata
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import yaml
from execnb.nbio import read_nb
from fastcore.docments import docments
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.token import Token
from nbdev import processors as procs
from nbdev.config import get_config
from nbdev.process import NBProcessor, Processor
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parent.parent
ROOMS = dict(tasks='Tasks', models='Models', train='Training', theory='Theory', analysis='Analysis', papers='Papers', bench='Benchmark', lab='Lab')
EXTRA = dict(Contributing='CONTRIBUTING.md', Changelog='CHANGELOG.md')
README_CMD = 'python dev/docs.py --readme'


class fold_source(Processor):
    "After the documentation of the names that a cell exports, the cell itself, folded up; nbdev leaves it out"
    def begin(self):
        cells, out = self.nb.cells, []
        for is_doc, run in itertools.groupby(cells, key=lambda c: bool(c.get('has_sd'))):
            run = list(run)
            if is_doc: out[-1:] = [*reversed(run), out[-1]]   # nbdev gives the names of one cell backwards
            else: out += run
        self.nb.cells = out

    def cell(self, cell):
        if cell.cell_type != 'code' or 'hide' in cell.directives_ or not cell.directives_.keys() & {'export', 'exporti'}: return
        if all(isinstance(t, (ast.Import, ast.ImportFrom)) for t in cell.parsed_() or []): return
        cell.directives_ = {k: v for k, v in cell.directives_.items() if not k.startswith('export')}   # or nbdev would leave it out
        cell.source, cell.outputs = f'#| code-fold: true\n#| code-summary: Source{private_names(cell)}\n{cell.source}', []


def label(tree):
    "The name of a definition; one called `_` goes by what its decorator says, such as the id of a claim"
    said = [d.args[0].value for d in tree.decorator_list if isinstance(d, ast.Call) and d.args and isinstance(d.args[0], ast.Constant)]
    return str(said[0]) if tree.name == '_' and said else tree.name


def private_names(cell):
    "What the source of a cell shows if no documentation precedes it: methods set on a class, or private names and values"
    trees = cell.parsed_() or []
    if any(not getattr(t, 'name', '_').startswith('_') for t in trees): return ''
    values = [ast.unparse(t) for tree in trees if isinstance(tree, ast.Assign) for t in getattr(tree.targets[0], 'elts', tree.targets)]
    names = [v for v in values if '.' in v] or [label(t) for t in trees if hasattr(t, 'name')] + values
    return f' of {", ".join(names)}' if names else ''


# FrontmatterProc is left out because it drops the text that follows a title in its cell, exec_show_docs because the
# exported module already has the symbols, and add_links because it cannot tell `Config` from `config`
PROCESSORS = [procs.populate_language, procs.add_show_docs, fold_source, procs.strip_ansi, procs.hide_line, procs.filter_stream_, procs.rm_header_dash,
              procs.rm_export, procs.clean_magics, procs.hide_, procs.add_fold, procs.strip_hidden_metadata]

RE_CODE = re.compile(r'^ *(?P<f>`{3,}|~{3,}).*?^ *(?P=f)[`~]* *$|(?P<t>`+)(?!`).+?(?<!`)(?P=t)(?!`)', re.S | re.M)
RE_TEX = re.compile(r'\$\$(.+?)\$\$|(?<![\\\w$])\$(?![\s$])([^$\n]+?(?:\n[^$\n]+?)*)(?<![\s\\])\$(?!\w)', re.S)
RE_OPERATOR = re.compile(r'<m[io]( movablelimits="true")?>([a-zA-Z]{2,})</m[io]>')
RE_VARIANT = re.compile(r'<(m[in]) mathvariant="(?!normal|italic)([\w-]+)">(\w|&#x\w+;)</m[in]>')
RE_HELD = re.compile('\ue000(\\d+)\ue001')
RE_ANSI = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')
RE_URL = re.compile(r'(?<=[\s"])(href|src)="([^"]*)"')
RE_CALLOUT = re.compile(r'^:::+ *\{\.callout-(\w+).*?\}\n(.*?)^:::+ *$', re.S | re.M)
MATHML = 'http://www.w3.org/1998/Math/MathML'
LIMITS = {'max', 'min', 'sup', 'inf', 'lim', 'argmax', 'argmin'}
SAME_AS = {'aligned': 'split', 'align': 'align*', 'gathered': 'matrix'}   # environments that the converter does not know, or would number
ADMONITION = dict(note='note', tip='tip', important='info', warning='warning', caution='danger')


class Problem(Exception):
    "Something a reader would see as broken"


# ---- Pages ----

@dataclass
class Page:
    "One page on its way from a notebook (or a Markdown file) to the site"
    src: Path                                  # the source, relative to the root
    out: str                                   # the address in the site, e.g. `tasks/modular.html`
    title: str = ''
    chunks: list = field(default_factory=list) # (cell, Markdown or HTML) pairs in order
    ids: set = field(default_factory=set)      # anchors that links may point to
    heading: str = ''                          # the last heading, for the text of figures that have none
    figures: int = 0

    def add(self, cell, text): self.chunks.append((cell, text))

    def anchor(self, want):
        "A fresh anchor, `want` if it is free"
        name, n = want, 1
        while name in self.ids: name, n = f'{want}-{n}', n+1
        self.ids.add(name)
        return name

    @cached_property
    def nb(self):
        "The notebook after nbdev's processors; cells know their number in the file"
        nb = read_nb(ROOT/self.src)
        for i, cell in enumerate(nb.cells): cell.number_ = i
        self.module = default_exp(nb)
        NBProcessor(nb=nb, procs=PROCESSORS).process()
        return nb

    @cached_property
    def documented(self): return {ast.unparse(a) for c in self.nb.cells for a in shown(c)}


def default_exp(nb):
    "The module that a notebook exports to, or None"
    found = [m[1] for c in nb.cells if c.cell_type == 'code' and (m := re.search(r'^#\|\s*default_exp\s+(\S+)', c.source, re.M))]
    return f'{get_config().lib_path.name}.{found[0]}' if found else None


def address(rel):
    "nbdev's address for a notebook: its folder and its name without the number"
    return rel.with_name(re.sub(r'^\d+[a-z0-9]*_', '', rel.stem.lower()) + '.html').as_posix()


def find_pages():
    "The tour, the rooms in reading order, what belongs to no room, then the Markdown pages"
    nbs = ROOT/'nbs'
    pages = [Page(Path('index.ipynb'), 'index.html')]
    for room in (*ROOMS, '.'):
        pages += [Page(f.relative_to(ROOT), address(f.relative_to(nbs))) for f in sorted((nbs/room).glob('[!_.]*.ipynb')) if not f.is_symlink()]
    pages += [Page(Path(f), f.removesuffix('.md').lower() + '.html') for f in EXTRA.values() if (ROOT/f).exists()]
    seen = {}
    for p in pages:
        if p.out in seen: raise Problem(f'{p.src} and {seen[p.out]} would both become {p.out}: rename one')
        seen[p.out] = p.src
    return pages


# ---- Names ----

@lru_cache(None)
def names():
    "What a name in backticks may mean: name -> [(address, symbol)]"
    lib, table = get_config().lib_path, {}
    if not (lib/'_modidx.py').exists(): raise Problem(f'{lib.name}/_modidx.py is missing: run nbdev_export')
    for module, syms in runpy.run_path(str(lib/'_modidx.py'))['d']['syms'].items():
        for full, (where, _) in syms.items():
            sym, page = full.removeprefix(module + '.'), where.partition('#')[0]
            if any(part.startswith('_') for part in sym.split('.')): continue
            parts = module.split('.')
            for i in range(len(parts) + 1): table.setdefault('.'.join([*parts[i:], sym]), []).append((page, sym))
            table.setdefault(module, []).append((page, ''))
    return table


def find_name(text, page):
    "The address of the page and the symbol that backticked `text` means on `page`, or None"
    text = text.removesuffix('()')
    def known(name): return min(names().get(name, []), key=lambda o: o[0] != page.out, default=None)
    if hit := known(text): return hit
    owner, _, member = text.rpartition('.')   # a method that is inherited or set on its class later
    return (hit[0], f'{hit[1]}.{member}') if (hit := known(owner)) and hit[1] and hit[1][0].isupper() else None


def slug(text): return re.sub(r'[^\w]+', '-', text.lower()).strip('-')


# ---- Markdown ----

@lru_cache(None)
def highlighter(lang):
    "What reads a language and what writes it; both take a while to make"
    try: lexer = get_lexer_by_name({'sh': 'bash', '': 'text'}.get(lang, lang), stripnl=False)
    except ClassNotFound: lexer = get_lexer_by_name('text')
    return lexer, HtmlFormatter(cssclass=f'language-{lang or "text"} highlight', wrapcode=True)


def highlighted(code, lang='', _attrs=''):
    "Code as the theme expects it"
    return highlight(code.strip('\n'), *highlighter(lang))


MD = MarkdownIt('commonmark', dict(html=True)).enable(['table', 'strikethrough'])
MD.add_render_rule('fence', lambda self, tokens, i, options, env: highlighted(tokens[i].content, tokens[i].info.split(' ')[0]))
MD.add_render_rule('table_open', lambda *_: '<div class="nb-table"><table class="nb-md-table">\n')
MD.add_render_rule('table_close', lambda *_: '</table></div>\n')


def mathml(tex, display):
    "TeX as MathML; what cannot be shown is a problem, not a red word on the page"
    for ours, known in SAME_AS.items(): tex = tex.replace(f'{{{ours}}}', f'{{{known}}}')
    try:
        out = RE_OPERATOR.sub(operator, RE_VARIANT.sub(variant, convert(tex, display='block' if display else 'inline')))
        root = ElementTree.fromstring(out)
    except Exception as e: raise Problem(f'cannot read the formula {tex!r}: {type(e).__name__} {e}') from None
    if '\\' in ''.join(root.itertext()): raise Problem(f'unknown command in the formula {tex!r}')
    if 'linebreak="newline"' in out: raise Problem(f'lines without an environment in the formula {tex!r}: use aligned')
    return f'<span class="nb-math">{limits(root)}</span>' if display else out


def limits(root):
    "In a displayed formula, what stands at the foot of `max` and its kind goes below it"
    ElementTree.register_namespace('', MATHML)
    for el in root.iter(f'{{{MATHML}}}msub'):
        if el[0].text in LIMITS: el.tag = f'{{{MATHML}}}munder'
    return ElementTree.tostring(root, encoding='unicode')


def variant(m):
    "A letter in another alphabet as its own character, since browsers no longer read `mathvariant`"
    kind = m[2].upper().replace('BOLD-ITALIC', 'BOLD ITALIC')
    name = re.sub('LATIN |GREEK |LETTER ', '', unicodedata.name(html.unescape(m[3])))
    for full in (f'MATHEMATICAL {kind} {name}', f'{kind} {name}', f'BLACK-LETTER {name}'):
        with contextlib.suppress(KeyError): return f'<{m[1]}>{unicodedata.lookup(full)}</{m[1]}>'
    return m[0]


def operator(m):
    "The name of a function with TeX's space after it, unless a bracket follows, and before it, if a factor precedes"
    before = re.search(r'(</m(i|n|sub|sup|subsup|row|frac|sqrt)>|&#x00029;</mo>)(<m(sub|sup|subsup|under)>)?$', m.string[:m.start()])
    after = not re.match(r'(<mrow>)?<mo[^>]*>&#x00028;', m.string[m.end():])
    return f'<mo{m[1] or ""} lspace="{".167em" if before else 0}" rspace="{".167em" if after else 0}">{m[2]}</mo>'


def hold(text, literal=False):
    "`text` with its formulas out of Markdown's way, and the formulas"
    held, codes = [], []
    def code(m):
        codes.append(m[0])
        return f'\ue002{len(codes)-1}\ue003'
    def formula(m):
        held.append((m[1] or m[2], bool(m[1])))
        return f'\ue000{len(held)-1}\ue001'
    text = RE_TEX.sub(formula, RE_CODE.sub(code, text))
    if literal: text = re.sub(r'([*_<])', r'\\\1', text)   # in a comment or docstring, `a*b*c` is a product and not emphasis
    return re.sub('\ue002(\\d+)\ue003', lambda m: codes[int(m[1])], text), held


def quoted_callouts(text):
    "Quarto's `:::{.callout-note}` as the `> [!NOTE]` that GitHub knows"
    def quote(m):
        body = re.sub(r'^#+ (.*)$', r'**\1**\n', m[2].strip(), flags=re.M)
        return f'> [!{m[1].upper()}]\n' + '\n'.join(f'> {line}'.rstrip() for line in body.splitlines())
    return RE_CALLOUT.sub(quote, text)


def link_names(tokens, page):
    "Put a link around inline code that names a documented symbol"
    for token in tokens:
        if not token.children: continue
        out, depth = [], 0
        for t in token.children:
            depth += (t.type == 'link_open') - (t.type == 'link_close')
            hit = t.type == 'code_inline' and not depth and find_name(t.content, page)
            out += [raw(f'<a href="sym:{hit[0]}#{hit[1]}">'), t, raw('</a>')] if hit else [t]
        token.children = out


def raw(text): return Token('html_inline', '', 0, content=text)


def admonitions(tokens):
    "Blockquotes that start with `[!NOTE]` as callouts"
    for i, token in enumerate(tokens):
        if token.type != 'blockquote_open' or not (m := re.match(r'\[!(\w+)\]\s*', tokens[i+2].content)): continue
        kind = ADMONITION.get(m[1].lower())
        if not kind: raise Problem(f'unknown callout [!{m[1]}]: use one of {", ".join(ADMONITION).upper()}')
        first = tokens[i+2]
        first.children = [c for j, c in enumerate(first.children) if j > 1 or (j == 0 and c.content != m[0].strip())]
        token.tag, token.attrs = 'div', {'class': f'admonition {kind}'}
        next(t for t in tokens[i:] if t.type == 'blockquote_close' and t.level == token.level).tag = 'div'
        tokens[i+1].meta['title'] = m[1].capitalize()


MD.add_render_rule('paragraph_open', lambda self, tokens, i, options, env:
    (f'<p class="admonition-title">{tokens[i].meta["title"]}</p>\n' if 'title' in tokens[i].meta else '') + self.renderToken(tokens, i, options, env))


def rendered(tokens, held):
    "Tokens as HTML with the formulas back in place"
    return RE_HELD.sub(lambda m: mathml(*held[int(m[1])]), MD.renderer.render(tokens, MD.options, {}))


def markdown(text, page, literal=False):
    "Markdown as HTML, headings included"
    text, held = hold(quoted_callouts(text), literal)
    tokens = MD.parse(text)
    admonitions(tokens)
    link_names(tokens, page)
    return rendered(tokens, held)


def inline(text, page, literal=False):
    "One paragraph of Markdown as HTML without the paragraph"
    return markdown(text, page, literal).strip().removeprefix('<p>').removesuffix('</p>')


BLOCK = '<div class="nb-block">'


def block(text):
    "HTML that the site generator must leave alone"
    return f'{BLOCK}\n{text.strip()}\n</div>'.replace('```', '&#96;'*3).replace('~~~', '&#126;'*3)


def heading(level, text, anchor, cls=''):
    "A heading in Markdown, the only part of a page that the site generator reads: the table of contents and search need it"
    safe = re.sub(r'[*_`\[\]{}!#\\]', lambda m: f'&#{ord(m[0])};', re.sub(r'&#\w+;', lambda m: html.unescape(m[0]), text))
    return f'{"#"*level} {safe} {{ #{anchor}{cls} }}'


def add_markdown(page, cell, text):
    "A Markdown cell: its headings one by one, what is between them as HTML"
    text, held = hold(quoted_callouts(text))
    tokens, rest = MD.parse(text), []
    admonitions(tokens)
    def flush():
        if rest:
            link_names(rest, page)
            page.add(cell, block(rendered(rest, held)))
            rest.clear()
    i = 0
    while i < len(tokens):
        if tokens[i].type != 'heading_open' or tokens[i].level:
            rest.append(tokens[i])
            i += 1
            continue
        flush()
        body = rendered([tokens[i+1]], held)
        page.heading = html.unescape(re.sub(r'<[^>]+>', '', body)).strip()
        page.add(cell, heading(int(tokens[i].tag[1]), body, page.anchor(slug(page.heading))))
        i += 3
        if not page.title:
            page.title = page.heading
            i = add_subtitle(page, cell, tokens, i, held)
    flush()


def add_subtitle(page, cell, tokens, i, held):
    "The quoted line under a title, and where the notebook is; returns the index of the next token"
    if i < len(tokens) and tokens[i].tag == 'blockquote':   # a callout has another tag
        page.add(cell, block(f'<p class="nb-sub">{rendered([tokens[i+2]], held)}</p>'))
        while tokens[i].type != 'blockquote_close': i += 1
        i += 1
    if page.src.suffix == '.ipynb': page.add(cell, block(f'<p class="nb-from" data-search-exclude>Notebook <a href="{source_url(page.src)}">{page.src.as_posix()}</a></p>'))
    return i


# ---- Signatures ----

def source_url(rel, line=None):
    "A file of the repository on its web host"
    cfg = get_config()
    kind = 'tree' if (ROOT/rel).is_dir() else 'blob'
    return f'{cfg.git_url}/{kind}/{cfg.branch}/{Path(rel).as_posix()}' + (f'#L{line}' if line else '')


def shown(cell):
    "The arguments of the `show_doc` calls in a cell"
    if cell.cell_type != 'code' or 'show_doc' not in (cell.source or ''): return []
    return [t.value.args[0] for t in cell.parsed_() or [] if isinstance(t, ast.Expr) and isinstance(t.value, ast.Call)
            and getattr(t.value.func, 'id', '') == 'show_doc']


def find_object(page, name):
    "What `name` is in the module that `page` exports to, or else in the module that exports it"
    top = name.split('.')[0]
    modules = [page.module] if page.module else [k.rpartition('.')[0] for k in names() if k.endswith('.' + top) and k.startswith(get_config().lib_path.name)]
    for module in modules:
        obj = importlib.import_module(module)
        if hasattr(obj, top):
            for part in name.split('.'): obj = inspect.getattr_static(obj, part) if inspect.isclass(obj) else getattr(obj, part)
            return obj
    raise Problem(f'no {name} in {", ".join(modules) or "the package"}: run nbdev_export')


def plain(obj):
    "The function inside a property, a method or a decorator"
    return inspect.unwrap(getattr(obj, 'fget', None) or getattr(obj, '__func__', obj))


def type_text(anno):
    "An annotation as a reader would write it"
    if typing.get_origin(anno) is typing.Annotated: anno = anno.__origin__
    text = anno if isinstance(anno, str) else inspect.formatannotation(anno)
    return re.sub(r'\b(?:\w+\.)+(?=\w)', '', text.strip("'")).replace(' | ', '|').replace('|', ' | ')


def value_text(value):
    "A default value as a reader would write it"
    text = getattr(value, '__name__', None) or repr(value)
    return '…' if text.startswith('<') else text


def param_text(p):
    "One parameter of a signature"
    star = {p.VAR_POSITIONAL: '*', p.VAR_KEYWORD: '**'}.get(p.kind, '')
    anno = '' if p.annotation is p.empty else f': {type_text(p.annotation)}'
    eq = ' = ' if anno else '='
    return star + p.name + anno + ('' if p.default is p.empty else eq + value_text(p.default))


def params(obj):
    "The parameters a caller gives, or None for a class that is never called with any"
    if inspect.isclass(obj) and not (lib_class(obj) or hasattr(obj, '__dataclass_fields__')): return None
    try: sig = inspect.signature(plain(obj))
    except (ValueError, TypeError): return None
    keep = [p for i, p in enumerate(sig.parameters.values()) if not (i == 0 and p.name in ('self', 'cls'))]
    return sig.replace(parameters=keep)


def lib_class(cls): return any('__init__' in vars(c) for c in cls.__mro__ if c.__module__.startswith(get_config().lib_path.name))


def signature(name, obj):
    "A signature as Python, over several lines when long"
    sig = params(obj)
    kind = 'class ' if inspect.isclass(obj) else ''
    if isinstance(obj, property): return name + returns(sig)
    if sig is None: return f'{kind}{name}' + (f'({bases})' if (bases := ', '.join(b.__name__ for b in obj.__bases__ if b is not object)) else '')
    args, ret = [param_text(p) for p in sig.parameters.values()], '' if inspect.isclass(obj) else returns(sig)
    one = f'{kind}{name}({", ".join(args)}){ret}'
    return one if len(one) <= 64 else f'{kind}{name}(\n' + ''.join(f'    {a},\n' for a in args) + f'){ret}'


def returns(sig): return '' if sig is None or sig.return_annotation in (sig.empty, None) else f' -> {type_text(sig.return_annotation)}'


def param_list(obj, page):
    "What the comments beside the parameters say"
    if isinstance(obj, property): return ''
    try: docs = docments(plain(obj), returns=True, args_kwargs=True)
    except (OSError, TypeError, ValueError): return ''
    hints = {k: next((m.help for m in getattr(a, '__metadata__', ()) if getattr(m, 'help', None)), None) for k, a in plain(obj).__annotations__.items()}   # of a command
    rows = [(k, v or hints.get(k)) for k, v in docs.items() if v or hints.get(k)]
    if not rows: return ''
    def row(k, v): return f'<dt><code>{"returns" if k == "return" else k}</code></dt><dd>{inline(v, page, literal=True)}</dd>'
    return '<dl class="nb-params">' + ''.join(row(k, v) for k, v in rows) + '</dl>'


def source_link(obj):
    "A link to the line that defines `obj`"
    try: file, line = inspect.getsourcefile(plain(obj)), inspect.getsourcelines(plain(obj))[1]
    except (OSError, TypeError): return ''
    if not Path(file).is_relative_to(ROOT): return ''
    return f'<a class="nb-source" data-search-exclude href="{source_url(Path(file).relative_to(ROOT), line)}">source</a>'


def doc_of(obj):
    "The docstring, unless Python made it up for a dataclass"
    doc = inspect.cleandoc(plain(obj).__doc__ or '')
    return '' if inspect.isclass(obj) and doc.startswith(obj.__name__ + '(') else doc


def member_list(name, cls, page):
    "Public methods and properties that have a docstring, each with an anchor"
    rows = []
    for k, obj in vars(cls).items():
        if k.startswith('_') or f'{name}.{k}' in page.documented or not (callable(plain(obj)) and doc_of(obj)): continue
        rows.append(f'<div class="nb-member" id="{page.anchor(f"{name}.{k}")}">{highlighted(signature(k, obj), "python")}'
                    f'{markdown(doc_of(obj), page, literal=True)}{param_list(obj, page)}</div>')
    return f'<div class="nb-members">{"".join(rows)}</div>' if rows else ''


def add_api(page, cell, name):
    "The documentation of one symbol"
    obj = find_object(page, name)
    page.add(cell, heading(3, name, page.anchor(name), ' .nb-name'))
    members = member_list(name, obj, page) if inspect.isclass(obj) else ''
    page.add(cell, block(f'<div class="nb-api"><div class="nb-sig">{source_link(obj)}{highlighted(signature(name, obj), "python")}</div>'
                         f'{markdown(doc_of(obj), page, literal=True)}{param_list(obj, page)}{members}</div>'))


# ---- Cells ----

def options(source):
    "The `#| key: value` lines of a code cell, and the code without them"
    opts = {k: v.strip().strip('"\'') for k, v in re.findall(r'^#\|\s*([\w-]+):\s*(.*)$', source, re.M)}
    return opts, re.sub(r'^#\|.*\n?', '', source, flags=re.M).strip()


def text_of(out, mime='text/plain'): return ''.join(out.get('data', {}).get(mime, ''))


def png_size(data): return [int.from_bytes(data[i:i+4], 'big') for i in (16, 20)]


def add_figure(page, cell, out, opts, files):
    "An image output, written beside the page"
    kind = 'svg' if 'image/svg+xml' in out['data'] else 'png'
    data = text_of(out, 'image/svg+xml').encode() if kind == 'svg' else base64.b64decode(text_of(out, 'image/png'))
    name = f'{Path(page.out).stem}_{page.figures}.{kind}'
    page.figures += 1
    files[posixpath.join(posixpath.dirname(page.out), name)] = data
    size = ''
    if kind == 'png':
        w, h = png_size(data)
        width = out.get('metadata', {}).get('image/png', {}).get('width', w)
        size = f' width="{width}" height="{round(h*width/w)}"'
    caption = f'<figcaption>{inline(opts["fig-cap"], page)}</figcaption>' if 'fig-cap' in opts else ''
    page.add(cell, block(f'<figure class="nb-fig"><img src="out:{name}" alt="{html.escape(figure_alt(page, opts))}"{size}>{caption}</figure>'))


def figure_alt(page, opts): return re.sub(r'[$`*]', '', opts.get('fig-alt') or opts.get('fig-cap') or f'Figure: {page.heading}')


def is_number(text): return bool(re.fullmatch(r'[-+−]?[\d.,]+(e[-+]?\d+)?( ?%)?|nan|NaN|inf|<NA>|None|-?', html.unescape(text).strip()))


def word_columns(rows):
    "Which columns, counted from the right, hold words rather than numbers"
    return {i for row in rows for i, text in enumerate(reversed(row)) if not is_number(text)}


def aligned(table):
    "A table whose columns of words are marked, so that they read from the left and may wrap"
    body = re.findall(r'<tr.*?</tr>', table.partition('<tbody')[2], re.S)
    words = word_columns([[re.sub(r'<[^>]+>', '', t) for t in re.findall(r'<td[^>]*>(.*?)</td>', row, re.S)] for row in body])
    def row(m):
        left = len(re.findall(r'<t[dh]\b', m[0]))
        def cell(c):
            nonlocal left
            left -= 1
            return f'{c[0]} data-words' if left in words else c[0]
        return re.sub(r'<t[dh]\b', cell, m[0])
    return re.sub(r'<tr.*?</tr>', row, table, flags=re.S)


def html_output(text):
    "An HTML result; tables scroll in a box of their own"
    if re.search(r'<(script|iframe|link)\b|\bsrc="http', text): raise Problem('the HTML output needs a script or the network')
    text = re.sub(r'<style scoped>.*?</style>', '', text, flags=re.S)
    text = re.sub(r'<table\b(?![^>]*class=)', '<table class="nb-df"', text).replace('border="1" class="dataframe"', 'class="nb-df"')
    return re.sub(r'<table.*?</table>', lambda m: f'<div class="nb-table">{aligned(m[0])}</div>', text, flags=re.S)


def add_output(page, cell, out, opts, files):
    "One stored result"
    data = out.get('data', {})
    if out['output_type'] == 'error': raise Problem(f'the stored output is an error: {out["ename"]}: {out["evalue"]}')
    if 'image/svg+xml' in data or 'image/png' in data: add_figure(page, cell, out, opts, files)
    elif 'text/html' in data: page.add(cell, block(f'<div class="nb-html">{html_output(text_of(out, "text/html"))}</div>'))
    elif 'text/markdown' in data: page.add(cell, block(f'<div class="nb-html">{markdown(text_of(out, "text/markdown"), page)}</div>'))
    elif 'text/latex' in data: page.add(cell, block(mathml(text_of(out, 'text/latex').strip('$ \n').removeprefix(r'\displaystyle'), True)))
    elif text := RE_ANSI.sub('', ''.join(out.get('text', '')) or text_of(out)).strip('\n'):
        cls = 'nb-out nb-err' if out.get('name') == 'stderr' else 'nb-out'
        page.add(cell, block(f'<pre class="{cls}"><code>{html.escape(text)}</code></pre>'))


def add_code(page, cell, files):
    "A code cell and its results"
    number = cell.number_
    opts, code = options(cell.source)
    if opts.get('include') == 'false': return
    if code and opts.get('echo') != 'false':
        body = highlighted(code, cell.metadata.get('language', 'python'))
        if opts.get('code-fold', 'false') != 'false':
            open_ = ' open' if opts['code-fold'] == 'show' else ''
            body = f'<details class="nb-fold" data-search-exclude{open_}><summary>{html.escape(opts.get("code-summary", "Code"))}</summary>{body}</details>'
        page.add(number, block(body))
    if opts.get('output') != 'false':
        for out in cell.get('outputs', []): add_output(page, number, out, opts, files)


def add_cell(page, cell, files):
    "One cell of a notebook, after nbdev's processors"
    if docs := shown(cell):
        for arg in docs: add_api(page, cell.number_, ast.unparse(arg))
    elif cell.cell_type == 'code': add_code(page, cell, files)
    elif cell.cell_type == 'markdown': add_markdown(page, cell.number_, cell.source)


def render(page, files, problems):
    "Fill in the chunks of a page; figures go to `files`"
    if page.src.suffix == '.md': return add_markdown(page, 0, (ROOT/page.src).read_text(encoding='utf-8'))
    number = 0
    for cell in page.nb.cells:
        number = cell.number_ = cell.get('number_', number)   # nbdev's own `show_doc` cells have the number of the cell they follow
        try: add_cell(page, cell, files)
        except Problem as e: problems.append(f'{page.src}, cell {number}: {e}')
    if not page.title: problems.append(f'{page.src}: no title; the first cell should start with `# `')


# ---- Links ----

def find_anchor(page, fragment):
    "The anchor of `page` that `fragment` means; Jupyter writes `#Two-words` for what is `#two-words` here"
    if not fragment: return ''
    for name in (fragment, slug(fragment)):
        if name in page.ids: return '#' + name
    raise Problem(f'no heading #{fragment} in {page.src}')


def symbol_anchor(page, symbol):
    "The anchor of a symbol, or of its class, or none"
    for name in (symbol, symbol.split('.')[0]):
        if name in page.ids: return '#' + name
    return ''


def resolve(url, page, by_out, by_src, files):
    "An address in a notebook as an address in the site"
    if re.match(r'https?:|mailto:|data:', url): return url
    if url.startswith('out:'): return url[4:]
    def relative(to): return posixpath.relpath(to, posixpath.dirname(page.out) or '.')
    path, _, fragment = url.partition('#')
    if url.startswith('sym:'):
        to = by_out.get(path[4:])
        if not to: raise Problem(f'{fragment or path[4:]} is documented on {path[4:]}, which does not exist: run nbdev_export')
        return ('' if to is page else relative(to.out)) + (symbol_anchor(to, fragment) or ('#' if to is page else ''))
    if not path: return find_anchor(page, fragment)
    full = (ROOT/page.src.parent/html.unescape(path)).resolve()
    if not full.exists() or not full.is_relative_to(ROOT): raise Problem(f'broken link {url}')
    rel = full.relative_to(ROOT)
    if rel in by_src: return relative(by_src[rel].out) + find_anchor(by_src[rel], fragment)
    if rel.suffix in ('.png', '.svg', '.jpg', '.gif'):
        files[f'files/{rel.as_posix()}'] = full.read_bytes()
        return relative(f'files/{rel.as_posix()}')
    return source_url(rel)


def resolve_all(pages, files, problems):
    "The chunks of each page with every address resolved"
    by_out, by_src = {p.out: p for p in pages}, {p.src: p for p in pages}
    texts = {}
    for page in pages:
        done = []
        for cell, chunk in page.chunks:
            def new(m):
                try: return f'{m[1]}="{resolve(m[2], page, by_out, by_src, files)}"'
                except Problem as e:
                    problems.append(f'{page.src}, cell {cell}: {e}')
                    return m[0]
            done.append(RE_URL.sub(new, chunk))
        texts[page.out.replace('.html', '.md')] = done
    return texts


# ---- The site ----

def navigation(pages):
    "The tour, one section for each room that has notebooks, what belongs to no room, the Markdown pages"
    def md(p): return p.out.replace('.html', '.md')
    nav = [dict(Tour='index.md')]
    for room, title in ROOMS.items():
        inside = [{p.title: md(p)} for p in pages if p.out.startswith(room + '/')]
        if inside: nav.append({title: inside})
    nav += [{p.title: md(p)} for p in pages[1:] if '/' not in p.out and p.src.suffix == '.ipynb']
    return nav + [{title: md(p)} for title, file in EXTRA.items() for p in pages if p.src.name == file]


def site_config(pages):
    "Settings of the site generator; no fonts, no repository facts, nothing else that would ask the network"
    cfg = get_config()
    def mode(media, scheme, icon, other): return dict(media=f'(prefers-color-scheme: {media})', scheme=scheme, toggle=dict(icon=f'lucide/{icon}', name=f'Switch to {other} mode'))
    return dict(
        site_name=cfg.title, site_description=cfg.description, copyright=cfg.copyright, docs_dir='docs', site_dir='site', use_directory_urls=False,
        nav=navigation(pages), extra_css=['docs.css'], plugins=['search'],
        extra=dict(generator=False, social=[dict(icon='fontawesome/brands/github', link=cfg.git_url, name='Source')]),
        theme=dict(name='material', font=False, icon=dict(logo='lucide/activity'),
                   features=['content.code.copy', 'navigation.sections', 'navigation.footer', 'navigation.top', 'toc.follow', 'search.highlight'],
                   palette=[mode('light', 'default', 'moon', 'dark'), mode('dark', 'slate', 'sun', 'light')]),
        markdown_extensions=['attr_list', dict(toc=dict(permalink=True)), 'blocks'])


# The site generator gets a number for each block, and this module, which puts the block in its place once the Markdown
# is read: so it need not go through megabytes of HTML in which there is nothing for it
FILL_IN = """
import json
import re
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor

with open('blocks.json', encoding='utf-8') as f: blocks = json.load(f)

class FillIn(Postprocessor):
    def run(self, text): return re.sub('<div data-block="(\\d+)"></div>', lambda m: blocks[int(m[1])], text)

class Blocks(Extension):
    def extendMarkdown(self, md): md.postprocessors.register(FillIn(md), 'blocks', -1)

makeExtension = Blocks
"""


def numbered(texts):
    "Pages as Markdown with a number for each block, and the blocks"
    blocks = []
    def number(chunk):
        if not chunk.startswith(BLOCK): return chunk
        blocks.append(chunk)
        return f'<div data-block="{len(blocks)-1}"></div>'
    return {k: '\n\n'.join(map(number, chunks)) + '\n' for k, chunks in texts.items()}, blocks


def generate(work, pages, texts, files):
    "Write the sources to `work` and run the site generator on them; returns the folder with the site"
    docs, (texts, blocks) = work/'docs', numbered(texts)
    for name, data in {**{k: v.encode() for k, v in texts.items()}, **files, 'docs.css': (ROOT/'dev/docs.css').read_bytes()}.items():
        (docs/name).parent.mkdir(parents=True, exist_ok=True)
        (docs/name).write_bytes(data)
    (work/'blocks.json').write_text(json.dumps(blocks), encoding='utf-8')
    (work/'blocks.py').write_text(FILL_IN, encoding='utf-8')
    (work/'mkdocs.yml').write_text(yaml.safe_dump(site_config(pages), sort_keys=False, allow_unicode=True), encoding='utf-8')
    done = subprocess.run([sys.executable, '-m', 'zensical', 'build', '--strict', '-f', 'mkdocs.yml'], cwd=work, text=True, capture_output=True)
    said = done.stdout + done.stderr
    if done.returncode or re.search('warning|error', said, re.I): raise Problem(f'zensical: {said.strip()}')
    return work/'site'


def remember():
    "nbdev and `inspect` parse each cell and each module many times; nobody changes what they get, and it all stays to the end"
    ast.parse, inspect.getsourcelines = lru_cache(None)(ast.parse), lru_cache(None)(inspect.getsourcelines)
    gc.disable()


def build(out):
    "Build the site into the folder `out`"
    remember()
    pages, files, problems = find_pages(), {}, []
    for module in sorted({k for k, v in names().items() if v[0][1] == ''}): importlib.import_module(module)   # a later room may add methods to a class of an earlier one
    for page in pages: render(page, files, problems)
    texts = resolve_all(pages, files, problems)
    if problems: raise Problem('\n'.join(problems))
    with tempfile.TemporaryDirectory() as tmp:
        site = generate(Path(tmp), pages, texts, files)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(site, out)
    print(f'{len(pages)} pages in {out}')


# ---- README ----

class TableReader(HTMLParser):
    "Rows of the first HTML table"
    def __init__(self, text):
        super().__init__()
        self.rows, self.cell = [], None
        self.feed(re.sub(r'<style.*?</style>', '', text, flags=re.S))

    def handle_starttag(self, tag, attrs):
        if tag == 'tr': self.rows.append([])
        if tag in ('td', 'th'): self.cell = ''

    def handle_data(self, data):
        if self.cell is not None: self.cell += data

    def handle_endtag(self, tag):
        if tag in ('td', 'th'):
            self.rows[-1].append(self.cell.strip().replace('|', r'\|'))
            self.cell = None


def markdown_table(text):
    "An HTML table as a Markdown table; the index of a frame loses its bold type"
    rows = TableReader(text).rows
    width = max(map(len, rows))
    rows = [[''] * (width - len(r)) + r for r in rows]
    def line(cells): return '| ' + ' | '.join(cells) + ' |'
    words = word_columns(rows[1:])
    return '\n'.join([line(rows[0]), line(['---' if width-1-i in words else '---:' for i in range(width)]), *map(line, rows[1:])])


def readme_output(out, opts, page, files):
    "One stored result as GitHub's Markdown"
    data = out.get('data', {})
    if out['output_type'] == 'error': raise Problem(f'the stored output is an error: {out["ename"]}')
    if 'image/png' in data:
        name, png = f'index_{page.figures}.png', base64.b64decode(text_of(out, 'image/png'))
        page.figures += 1
        files[name] = png
        width = out.get('metadata', {}).get('image/png', {}).get('width', png_size(png)[0])
        return f'<img src="nbs/images/{name}" width="{width}" alt="{html.escape(figure_alt(page, opts))}">' + (f'\n\n{opts["fig-cap"]}' if 'fig-cap' in opts else '')
    if '<table' in text_of(out, 'text/html'): return markdown_table(text_of(out, 'text/html'))
    if 'text/markdown' in data: return text_of(out, 'text/markdown')
    text = RE_ANSI.sub('', ''.join(out.get('text', '')) or text_of(out)).strip('\n')
    return f'```text\n{text}\n```' if text else ''


def readme_links(text, page, by_out):
    "Names in backticks as links to the notebooks that document them"
    def link(m):
        hit = not m['f'] and find_name(m[0].strip('`'), page)
        return f'[{m[0]}]({by_out[hit[0]].src.as_posix()})' if hit and hit[0] in by_out else m[0]
    # a name that is the text of a link already has its own
    return ''.join(part if i % 2 else RE_CODE.sub(link, part) for i, part in enumerate(re.split(r'(^ *```.*?^ *```|\[[^\]\n]*\]\([^)\n]*\))', text, flags=re.S | re.M)))


def readme_cell(cell, page, by_out, files):
    "The parts of README.md that one cell gives"
    if cell.cell_type == 'markdown':
        text = quoted_callouts(cell.source)
        if m := re.findall(r'^#+ +(.*)$', RE_CODE.sub('', text), re.M): page.heading = m[-1]
        yield readme_links(text, page, by_out)
    elif cell.cell_type == 'code':
        opts, code = options(cell.source)
        if opts.get('include') == 'false': return
        if code and opts.get('echo') != 'false': yield f'```{cell.metadata.get("language", "python")}\n{code}\n```'
        if opts.get('output') != 'false': yield from (readme_output(o, opts, page, files) for o in cell.get('outputs', []))


def readme():
    "README.md and its figures: {path: bytes}"
    pages = find_pages()
    page, by_out, files, parts = pages[0], {p.out: p for p in pages}, {}, ['<!-- Made from index.ipynb by `python dev/docs.py --readme`: edit the notebook. -->']
    for cell in page.nb.cells: parts += readme_cell(cell, page, by_out, files)
    return {'README.md': ('\n\n'.join(filter(None, parts)) + '\n').encode(), **{f'nbs/images/{k}': v for k, v in files.items()}}


def stale_figures(files): return [f for f in sorted((ROOT/'nbs/images').glob('index_*.png')) if f.relative_to(ROOT).as_posix() not in files]


def write_readme():
    "Write README.md and its figures, and remove figures it no longer shows"
    files = readme()
    for f in stale_figures(files): f.unlink()
    for name, data in files.items():
        (ROOT/name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT/name).write_bytes(data)
    print(f'README.md and {len(files)-1} figures')


def check_readme():
    "Raise a `Problem` if README.md is not what index.ipynb gives"
    files = readme()
    wrong = [n for n, data in files.items() if not (ROOT/n).exists() or (ROOT/n).read_bytes() != data]
    wrong += [f.relative_to(ROOT).as_posix() for f in stale_figures(files)]
    if wrong: raise Problem(f'{", ".join(wrong)}: not what index.ipynb gives; run `{README_CMD}`')


def main():
    "Build the site or the README"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=Path, default=ROOT/'_docs', help='folder for the site')
    parser.add_argument('--readme', action='store_true', help='write README.md instead of the site')
    parser.add_argument('--check', action='store_true', help='with --readme: only compare')
    args = parser.parse_args()
    if args.check and not args.readme: parser.error('--check goes with --readme')
    out = args.out.resolve()
    os.chdir(ROOT)   # nbdev finds its settings from here
    sys.path.insert(0, str(ROOT))
    try:
        if args.check: check_readme()
        elif args.readme: write_readme()
        else: build(out)
    except Problem as e: sys.exit(str(e))


if __name__ == '__main__': main()
